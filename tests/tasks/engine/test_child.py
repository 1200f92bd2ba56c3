"""A heavy job in its own process, on a GPU that is taken in turns: its log, its progress, its
failures, and nothing left of it."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.topology import Launch
from klear.eval.progress import listening
from klear.tasks.engine import supervise
from klear.tasks.engine.child import WAITING, ChildFailed, gpu_slot, run_child

FAMILY = """
import json, os, signal, subprocess, sys, time
mark, ready, ending = sys.argv[1:]
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(300)", mark]
subprocess.Popen(sleep)                              # a child
subprocess.Popen(sleep, start_new_session=True)      # one in a session of its own
parent = os.fork()
if parent == 0:                                      # one whose parent is gone
    os.setsid()
    subprocess.Popen(sleep)
    os._exit(0)
os.waitpid(parent, 0)
if ending == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(ready + ".part", "w") as file:
    json.dump({"done": 1, "total": 2, "note": "ready"}, file)
os.replace(ready + ".part", ready)
if ending != "end":
    time.sleep(300)
sys.exit(3)
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def run_command(command: list[str], out: Path) -> None:
    run_child(Launch(), out, command=lambda _: command)


def log_of(out: Path) -> str:
    return (out / "logs" / "child.log").read_text()


def test_a_failure_carries_the_last_lines_of_this_attempt_alone(tmp_path: Path) -> None:
    run_command(python("import sys; print('earlier', file=sys.stderr)"), tmp_path)
    with pytest.raises(ChildFailed, match="exit code 7") as caught:
        run_command(python("[print('line', n) for n in range(30)]; raise SystemExit(7)"), tmp_path)
    assert caught.value.code == 7
    assert str(tmp_path / "logs" / "child.log") in str(caught.value)
    assert str(caught.value).splitlines()[1:] == [f"line {n}" for n in range(10, 30)]
    assert log_of(tmp_path).startswith("earlier\nline 0\n")
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(ChildFailed, match=r"exit code 137 .*out of memory"):
        run_command(python(suicide), tmp_path)


def test_progress_of_this_attempt_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / ".resume").mkdir()
    progress = tmp_path / ".resume" / "progress.json"
    progress.write_text('{"done": 9, "total": 9, "note": ""}')
    code = "import os, sys; open('new', 'w').write(sys.argv[2]); os.replace('new', sys.argv[1])"
    now = json.dumps({"done": 1, "total": 3, "note": "step 1"})
    seen: list[tuple[float, float, str]] = []
    with listening(lambda *now: seen.append(now)):
        run_command(python("pass"), tmp_path)
        assert seen == []
        run_command(python(f"import os; os.chdir({str(tmp_path)!r}); {code}", str(progress), now),
                    tmp_path)  # fmt: skip
    assert seen == [(1, 3, "step 1")]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_ends_the_whole_tree_before_it_goes_on(tmp_path, marked, error):
    def interrupt(*_: object) -> None:
        assert len(marked.processes()) >= 5  # supervisor, command and its three
        raise error

    ready = tmp_path / ".resume" / "progress.json"
    with listening(interrupt), pytest.raises(error):
        run_command(python(FAMILY, marked.word, str(ready), "sleep"), tmp_path)
    assert marked.processes() == []


def test_what_a_finished_command_left_behind_is_ended(tmp_path: Path, marked: Any) -> None:
    with pytest.raises(ChildFailed, match="exit code 3"):
        run_command(python(FAMILY, marked.word, str(tmp_path / "ready"), "end"), tmp_path)
    assert marked.processes() == []


def test_a_command_that_ignores_term_is_killed_after_the_grace(tmp_path: Path, marked: Any) -> None:
    ready = tmp_path / "ready"
    command = python(FAMILY, marked.word, str(ready), "ignore")
    process = subprocess.Popen([*supervise.supervised(0.5), *command])
    while not ready.exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert marked.processes() == []


def test_killing_the_parent_ends_the_whole_tree(tmp_path: Path, marked: Any) -> None:
    stage = (
        "import sys; from pathlib import Path; from klear.configs.settings.topology import Launch; "
        "from klear.tasks.engine.child import run_child; command = [sys.executable, '-c']; "
        "run_child(Launch(), Path(sys.argv[1]), command=lambda _: command + sys.argv[2:])"
    )
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        python(stage, str(tmp_path), FAMILY, marked.word, str(ready), "sleep"), cwd=tmp_path
    )
    while not ready.exists():
        assert process.poll() is None
    assert len(marked.processes()) >= 6
    process.kill()
    process.wait()
    assert marked.processes(seconds=60) == []


def test_the_job_travels_as_a_file_and_packages_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "select.py").write_text("raise RuntimeError('shadows the standard library')")
    code = "import sys, select, klear.training; print(sys.stdin.read(), open(sys.argv[1]).read())"
    launch = Launch(nodes=3)
    run_child(launch, tmp_path, command=lambda job: [sys.executable, "-P", "-c", code, str(job)])
    assert Launch.model_validate_json(log_of(tmp_path)) == launch


HOLDER = """
import sys, time
from klear.tasks.engine.child import gpu_slot
with gpu_slot() as held:
    import subprocess
    subprocess.Popen([sys.executable, "-S", "-c", "input()"], pass_fds=held)
    print("held", flush=True)
    time.sleep(300)
"""


def test_the_slot_is_taken_while_a_process_that_computes_lives(tmp_path, monkeypatch):
    """Not while the run lives: a killed run's child may be on the GPU a little longer."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    monkeypatch.setenv("KLEAR_GPU_SLOTS", "1")
    holder = subprocess.Popen(
        python(HOLDER),
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    stdin = holder.stdin
    assert holder.stdout.readline() == "held\n"
    messages: list[str] = []

    def listen(done: float, total: float, note: str) -> None:
        messages.append(note)
        if len(messages) == 1:
            holder.kill()
            holder.wait()
        else:
            stdin.close()  # its child reads the end of its input and goes

    with listening(listen), gpu_slot() as held:
        assert len(messages) >= 2
        assert set(messages) == {WAITING}
        assert len(held) == 1
