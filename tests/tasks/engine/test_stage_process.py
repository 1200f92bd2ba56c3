"""The work of a stage has a process of its own: what it says arrives, it can be ended whatever it
does, and it leaves nobody behind."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import eventually

from klear.configs.settings.explain import ConfigError
from klear.tasks.engine import stage_process
from klear.tasks.engine.scheduler import Node, run_graph
from klear.tasks.engine.stage_process import StageDied, Stalled, run_process
from tests.tasks.engine import bodies

ROOT = Path(__file__).parents[3]


def run(function: Callable[..., Any], tmp_path: Path, **arguments: Any) -> Any:
    heard: list[Any] = arguments.pop("heard", [])
    log = arguments.pop("log", tmp_path / "no.log")
    return run_process(
        function,
        arguments,
        stage="judge",
        stall_minutes=30,
        listen=lambda *progress: heard.append(progress),
        log=log,
        answer=str.upper,
    )


def once_begun(names: Path, act: Callable[[], object], processes: int = 1) -> None:
    """Calls `act` as soon as so many processes hang, whose names are there."""

    def wait_and_act() -> None:
        assert eventually(lambda: len(list(names.iterdir())) == processes)
        act()

    threading.Thread(target=wait_and_act, daemon=True).start()


def test_progress_log_questions_and_the_result_pass_between_the_processes(
    tmp_path, caplog, monkeypatch
):
    heard = []
    for value in ("first", "second"):  # the fork server has the environment of the first
        monkeypatch.setenv("OF_THIS_MOMENT", value)
        reply, pid, environment = run(bodies.answer, tmp_path, question="why", heard=heard)
        assert (reply, environment) == ("WHY", value)
        assert pid != os.getpid()
    assert heard == [(1, 2, "asking")] * 2
    assert caplog.record_tuples == [("klear", logging.WARNING, "why was asked")] * 2


def test_an_error_arrives_as_it_is_and_says_where_it_was_raised_unless_the_process_dies(tmp_path):
    with pytest.raises(ConfigError) as failed:
        run(bodies.fail, tmp_path, way="raise")
    assert failed.value.problems == ("sft.epochs: wrong", "sft.steps: wrong")
    assert "bodies.py" in failed.value.__notes__[0]
    with pytest.raises(StageDied, match=r"judge.*SIGKILL"):
        run(bodies.fail, tmp_path, way="exit")


def test_a_stage_whose_fork_server_was_ended_is_ended_too(tmp_path, names, monkeypatch):
    """`klear down` and systemd end all processes of a run at once."""
    monkeypatch.setattr(stage_process, "GRACE_S", 0.5)
    once_begun(names, lambda: os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL))
    with pytest.raises(StageDied):
        run(bodies.hang, tmp_path, names=names)
    assert eventually(lambda: is_gone(names))


def is_gone(names: Path) -> bool:
    pids = [n.name for n in names.iterdir() if n.name.isdigit()]
    return bool(pids) and not any(Path("/proc", pid).exists() for pid in pids)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """Where hanging processes say who they are."""
    (tmp_path / "names").mkdir()
    return tmp_path / "names"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_silent_stage_is_killed_and_says_where_it_was(
    tmp_path, names, silence, monkeypatch, stubborn
):
    """Where its work has a log, the end of that: it says more than the code."""
    monkeypatch.setattr(stage_process, "GRACE_S", 1.0)
    log = tmp_path / "child.log"
    if stubborn:
        log.write_text("".join(f"line {n}\n" for n in range(100)))
    once_begun(names, silence)
    with pytest.raises(Stalled, match=r"judge made no progress for 30 minutes") as failed:
        run(bodies.hang, tmp_path, names=names, stubborn=stubborn, log=log)
    for part in ("7 of 40 AC", "stall_minutes"):
        assert part in str(failed.value)
    if stubborn:
        assert str(failed.value).splitlines()[-20:] == [f"line {n}" for n in range(80, 100)]
    else:
        assert "bodies.py" in str(failed.value)
        assert "in hang" in str(failed.value)
    assert is_gone(names)
    assert (names / "cleaned").exists() != stubborn


def test_a_stage_that_was_stopped_with_its_run_for_an_hour_goes_on(tmp_path, names, monkeypatch):
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(stage_process, "time", clocks)

    def stop_and_continue() -> None:
        now[0] += 3600
        time.sleep(5 * stage_process.POLL_S)
        (names / "go").touch()

    once_begun(names, stop_and_continue)
    assert run(bodies.wait_until_told, tmp_path, names=names) == "done"


def test_what_a_stage_logs_arrives_also_after_it_has_imported_prefect(tmp_path, caplog):
    run(bodies.log_beside_prefect, tmp_path)
    assert "still heard beside prefect" in caplog.messages


def test_a_job_is_asked_for_its_stack_and_its_supervisor_is_not():
    job = [sys.executable, "-P", "-m", "klear.training.launch.run_job", "job.json"]
    supervisor = [sys.executable, "-I", "supervise.py", "17", "5", "--", *job]
    runs_a_job: Any = stage_process._runs_a_job
    answers = [
        runs_a_job(SimpleNamespace(cmdline=lambda w=words: w)) for words in (job, supervisor)
    ]
    assert answers == [True, False]


@pytest.mark.parametrize("work", [bodies.hang, bodies.hang_in_parts])
def test_a_run_that_ends_early_ends_the_process_with_its_clean_up(tmp_path, names, work):
    """And the workers of its parts."""
    before = signal.signal(signal.SIGUSR2, signal.default_int_handler)  # a shell may ignore SIGINT
    press = partial(signal.pthread_kill, threading.main_thread().ident or 0, signal.SIGUSR2)
    once_begun(names, press, processes=2 if work is bodies.hang_in_parts else 1)
    with pytest.raises(KeyboardInterrupt):
        run_graph({"judge": Node((), lambda: run(work, tmp_path, names=names))})
    signal.signal(signal.SIGUSR2, before)
    assert is_gone(names)
    assert (names / "cleaned").exists() or work is bodies.hang_in_parts


def test_the_process_ends_with_the_one_that_wants_it(tmp_path, names):
    program = f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {[str(ROOT / ".package"), str(ROOT)]!r}
        from tests.tasks.engine.test_stage_process import bodies, run

        if __name__ == "__main__":
            run(bodies.hang, Path({str(tmp_path)!r}), names=Path({str(names)!r}))
        """
    (tmp_path / "waits.py").write_text(textwrap.dedent(program))
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "waits.py")], env=paths)
    assert eventually(lambda: any(names.iterdir()), 120)
    parent.kill()
    parent.wait()
    assert eventually(lambda: is_gone(names), 120)
