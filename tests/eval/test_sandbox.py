"""A program can only read its input and write its output."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from klear.configs.files import PACKAGE
from klear.eval.programs.tested_sandbox import assert_isolated, check_sandbox
from klear.eval.sandbox import SandboxUnavailable
from klear.eval.sandbox.sandbox import Sandbox
from klear.eval.sandbox.zygote.main import Limits

LIMITS = Limits(cpu_s=2, wall_s=10, memory=1 << 30, output=1 << 20)


def output_of(sandbox: Sandbox, program: str, stdin: str = "") -> str:
    assert sandbox.compile(program.encode(), LIMITS).exit_code == 0
    outcome = sandbox.run(stdin.encode(), LIMITS)
    text = outcome.stdout.decode("utf-8", "replace").strip()
    return text if outcome.exit_code == 0 else f"{text}[{outcome.last_error_line}]"


class StandingStill(Sandbox):
    """The first `stops` runs after the compilation are seen to end as on a machine that froze."""

    runs, stops = 0, 1

    def _run_once(self, processes, limits):
        outcomes = super()._run_once(processes, limits)
        self.runs += 1
        frozen = 1 < self.runs <= 1 + self.stops
        return [replace(o, timed_out=True, cpu_s=0.0) for o in outcomes] if frozen else outcomes


@pytest.mark.parametrize(("stops", "late"), [(1, False), (2, True)])
def test_a_machine_that_stands_still_once_fails_no_program(stops, late):
    with StandingStill("bubblewrap") as sandbox:
        sandbox.stops = stops
        sandbox.compile(b"print(7)", LIMITS)
        first, second = sandbox.run(b"", LIMITS), sandbox.run(b"", LIMITS)
    assert (first.timed_out, second.timed_out) == (late, False)
    assert sandbox.runs == 4  # the compilation, two runs, one second try: never another


def test_a_signal_ends_its_sender(sandbox):
    for program in ("import os; os.kill(-1, 9)", "import os; os.kill(1, 0); print('sent')"):
        sandbox.compile(program.encode(), LIMITS)
        assert sandbox.run(b"", LIMITS).exit_code == -signal.SIGSYS


def test_a_program_has_its_three_descriptors_and_nothing_of_the_environment(sandbox, monkeypatch):
    monkeypatch.setenv("KLEAR_SECRET", "s3cret")
    assert "s3cret" not in output_of(sandbox, "import os; print(os.environ)")
    program = (
        "import os\n"
        "def is_open(fd):\n    try: return bool(os.fstat(fd))\n    except OSError: return False\n"
        "print([fd for fd in range(1024) if is_open(fd)])"
    )
    assert output_of(sandbox, program) == "[0, 1, 2]"


def test_a_sandbox_that_does_not_isolate_is_refused():
    """Without isolation the canaries sing."""
    with Sandbox("none") as sandbox:
        sandbox.backend = "bubblewrap"
        with pytest.raises(SandboxUnavailable, match="a program could reach the network"):
            assert_isolated(sandbox)


def test_the_check_says_what_works_or_how_to_repair_it(monkeypatch):
    text, status = check_sandbox("bubblewrap")
    assert (status, "programs are isolated" in text) == (0, True), text
    monkeypatch.setenv("PATH", "/nonexistent")
    text, status = check_sandbox("bubblewrap")
    assert (status, "refused" in text, "apt-get install bubblewrap" in text) == (1, True, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_normal_user_gets_the_same_isolation():
    interpreter = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    source = PACKAGE.parent
    if not Path(interpreter).exists() or source.stat().st_mode & 5 != 5:
        pytest.skip("needs an interpreter and a source that other users can read")
    site = next(p for p in sys.path if p.endswith("site-packages"))
    code = (
        f"import sys; sys.path[:0] = [{str(source)!r}, {site!r}]\n"
        "from klear.eval.sandbox.sandbox import Sandbox\n"
        "from klear.eval.programs.tested_sandbox import assert_isolated\n"
        "with Sandbox('bubblewrap') as sandbox: assert_isolated(sandbox)\n"
        "print('isolated')"
    )
    somebody = {"user": 12345, "group": 12345, "extra_groups": []}
    done = subprocess.run(
        [interpreter, "-c", code], capture_output=True, text=True, cwd="/", check=False,
        env={"PATH": os.environ["PATH"]}, **somebody,
    )  # fmt: skip
    assert done.stdout == "isolated\n", done.stderr
