"""A heavy job in its own process: its log, its progress, its failures and its end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tasks import child
from tasks.child import ChildFailed, run_child, run_command
from tasks.progress import listening

SLEEP = "import time; time.sleep(300)"


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_output_goes_to_the_log_of_the_stage(tmp_path: Path) -> None:
    run_command(python("import sys; print('to out'); print('to err', file=sys.stderr)"), tmp_path)
    log = (tmp_path / "logs" / "child.log").read_text()
    assert "to out\n" in log
    assert "to err\n" in log


def test_a_second_attempt_appends_to_the_log(tmp_path: Path) -> None:
    run_command(python("print('first')"), tmp_path)
    run_command(python("print('second')"), tmp_path)
    assert (tmp_path / "logs" / "child.log").read_text() == "first\nsecond\n"


def test_a_failure_carries_the_last_lines_of_this_attempt_and_the_log(tmp_path: Path) -> None:
    run_command(python("print('line of an earlier attempt')"), tmp_path)
    with pytest.raises(ChildFailed) as caught:
        run_command(python("[print('line', n) for n in range(30)]; raise SystemExit(7)"), tmp_path)
    message = str(caught.value)
    assert "exit code 7" in message
    assert str(tmp_path / "logs" / "child.log") in message
    assert message.splitlines()[1:] == [f"line {n}" for n in range(10, 30)]
    assert "earlier" not in message


def test_an_early_failure_does_not_quote_an_earlier_attempt(tmp_path: Path) -> None:
    run_command(python("print('line of an earlier attempt')"), tmp_path)
    with pytest.raises(ChildFailed) as caught:
        run_command(python("raise SystemExit(1)"), tmp_path)
    assert "earlier" not in str(caught.value)


def test_a_killed_child_says_so(tmp_path: Path) -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ChildFailed, match=r"signal 9 .*out of memory"):
        run_command(python(suicide), tmp_path)


def test_the_child_reads_nothing_from_the_terminal(tmp_path: Path) -> None:
    run_command(python("import sys; assert sys.stdin.read() == ''"), tmp_path)


def test_progress_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / ".resume").mkdir()
    writes = """
import json, os, sys, time
for done in (1, 2, 3):
    with open(sys.argv[1] + ".part", "w") as file:
        json.dump({"done": done, "total": 3, "note": f"step {done}"}, file)
    os.replace(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(1.2)
"""
    seen: list[tuple[float, float, str]] = []
    with listening(lambda done, total, note: seen.append((done, total, note))):
        run_command(python(writes, str(tmp_path / ".resume" / "progress.json")), tmp_path)
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


def test_progress_of_an_earlier_attempt_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / ".resume").mkdir()
    (tmp_path / ".resume" / "progress.json").write_text('{"done": 9, "total": 9, "note": ""}')
    seen: list[float] = []
    with listening(lambda done, total, note: seen.append(done)):
        run_command(python("pass"), tmp_path)
    assert seen == []


def test_on_poll_runs_meanwhile_and_once_after_the_end(tmp_path: Path) -> None:
    written = tmp_path / "rows"
    code = "import sys, time; time.sleep(0.7); open(sys.argv[1], 'w').write('all')"
    seen: list[bool] = []
    run_command(python(code, str(written)), tmp_path, on_poll=lambda: seen.append(written.exists()))
    assert seen[0] is False
    assert seen[-1] is True


def test_a_child_without_progress_is_ended(tmp_path: Path, marked: Any) -> None:
    with pytest.raises(ChildFailed, match=r"no progress for 0\.01 minutes"):
        run_command(python(SLEEP, marked.word), tmp_path, stall_minutes=0.01)
    assert marked.pids() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_an_interrupt_ends_the_tree_before_it_goes_on(
    tmp_path: Path, marked: Any, error: type[BaseException]
) -> None:
    family = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}, sys.argv[1]], start_new_session=True);"
        "time.sleep(300)"
    )

    def interrupt_once_it_runs() -> None:
        if len(marked.pids()) >= 3:  # supervisor, command and its child
            raise error

    with pytest.raises(error):
        run_command(python(family, marked.word), tmp_path, on_poll=interrupt_once_it_runs)
    assert marked.pids() == []


def test_killing_the_stage_leaves_nothing(tmp_path: Path, marked: Any) -> None:
    family = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}, sys.argv[1]], start_new_session=True);"
        "open(sys.argv[2], 'w').close(); time.sleep(300)"
    )
    stage = (
        "import sys; from pathlib import Path; from tasks.child import run_command; "
        "run_command([sys.executable, '-c', *sys.argv[2:]], Path(sys.argv[1]))"
    )
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        python(stage, str(tmp_path), family, marked.word, str(ready)), cwd=child.ROOT
    )
    deadline = time.monotonic() + 15
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(marked.pids()) >= 4
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert marked.gone()


class Job(BaseModel):
    steps: int


def test_the_job_travels_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(child, "run_command", lambda command, out, **_: commands.append(command))
    run_child(Job(steps=3), tmp_path)
    job_file = tmp_path / ".resume" / "job.json"
    assert json.loads(job_file.read_text()) == {"steps": 3}
    assert commands[0][-3:] == ["-m", "training.child", str(job_file)]


def test_the_packages_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "select.py").write_text("raise RuntimeError('shadows the standard library')")
    command = [sys.executable, "-P", "-c", "import select, training; print(training.__file__)"]
    run_command(command, tmp_path)
    assert str(child.ROOT) in (tmp_path / "logs" / "child.log").read_text()
