import importlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tasks.parts import computed_parts
from tasks.watchdog import Stalled, watched

ROOT = Path(__file__).parents[2]


WORK = """
import os, signal, time
from pathlib import Path

def hang(part, folder):
    # a part is the folder where each worker says who it is; the first does not heed TERM
    if not list(Path(part).iterdir()):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(part) / str(os.getpid())).touch()
    time.sleep(3600)

def fail_or_hang(part, folder):
    if part[0] == "fail":
        while not list(Path(part[1]).iterdir()):
            time.sleep(0.05)
        raise OSError("disk full")
    hang(part[1], folder)

def write_square(part, folder):
    (folder / "square").write_text(str(part * part))

def die(part, folder):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that worker processes can import, which this file is not."""
    (tmp_path / "work_of_parts.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("work_of_parts")
    sys.modules.pop("work_of_parts")


def squares(folders) -> list[int]:
    return [int((folder / "square").read_text()) for folder in folders]


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_come_in_order_whatever_the_number_of_workers(tmp_path, work, workers):
    parts = [3, 1, 2, 5]

    folders = computed_parts(tmp_path / "parts", parts, work.write_square, workers=workers)

    assert squares(folders) == [part * part for part in parts]


def test_a_finished_part_is_not_computed_again(tmp_path, work):
    computed: list[int] = []

    def fails_at_the_third(part: int, folder: Path) -> None:
        (folder / "square").write_text("torn")
        if part == 3 and 3 not in computed:
            computed.append(part)
            raise OSError("disk full")
        computed.append(part)
        work.write_square(part, folder)

    with pytest.raises(OSError, match="disk full"):
        list(computed_parts(tmp_path / "parts", [1, 2, 3, 4], fails_at_the_third))
    folders = list(computed_parts(tmp_path / "parts", [1, 2, 3, 4], fails_at_the_third))

    assert computed == [1, 2, 3, 3, 4]
    assert squares(folders) == [1, 4, 9, 16]


def test_a_worker_that_dies_is_an_error_with_advice(tmp_path, work):
    with pytest.raises(RuntimeError, match="fewer workers or smaller parts"):
        list(computed_parts(tmp_path / "parts", [1, 2], work.die, workers=2))


def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "slow.py").write_text(
        textwrap.dedent(f"""
        import os, sys, time
        from pathlib import Path
        sys.path.insert(0, {str(ROOT)!r})
        from tasks.parts import computed_parts

        def wait(part, folder):
            (Path({str(tmp_path)!r}) / f"pid-{{os.getpid()}}").touch()
            time.sleep(60)

        if __name__ == "__main__":
            list(computed_parts(Path({str(tmp_path)!r}) / "parts", [1, 2], wait, workers=2))
        """)
    )
    parent = subprocess.Popen([sys.executable, str(tmp_path / "slow.py")])
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]

    parent.kill()
    parent.wait()

    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def wait_until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """Where hanging workers say who they are."""
    folder = tmp_path / "names"
    folder.mkdir()
    return folder


def left(names: Path) -> list[str]:
    """The workers that are still there, ended ones that nobody buried among them."""
    return [p.name for p in names.iterdir() if Path("/proc", p.name).exists()]


def test_workers_that_hang_are_ended_with_the_stage(tmp_path, work, names):
    def stage() -> None:
        with watched("collect", 1 / 60) as beat:
            threading.Thread(target=until_they_hang, args=(beat,), daemon=True).start()
            list(computed_parts(tmp_path / "parts", [names] * 4, work.hang, workers=2))

    def until_they_hang(beat: Callable[[str], None]) -> None:
        while len(list(names.iterdir())) < 2:
            beat("starting")
            time.sleep(0.05)

    with pytest.raises(Stalled, match="collect made no progress"):
        stage()
    assert len(list(names.iterdir())) == 2
    assert left(names) == []


def test_a_cancel_does_not_wait_for_the_parts_that_are_computed(tmp_path, work, names):
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    main = threading.main_thread().ident or 0

    def cancel() -> None:
        wait_until(lambda: len(list(names.iterdir())) == 2)
        signal.pthread_kill(main, signal.SIGUSR1)

    threading.Thread(target=cancel, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(computed_parts(tmp_path / "parts", [names] * 4, work.hang, workers=2))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(list(names.iterdir())) == 2
    assert left(names) == []


def test_a_part_that_fails_ends_the_others_at_once(tmp_path, work, names):
    parts = [("fail", names), ("hang", names)]
    with pytest.raises(OSError, match="disk full"):
        list(computed_parts(tmp_path / "parts", parts, work.fail_or_hang, workers=2))
    assert len(list(names.iterdir())) == 1
    assert left(names) == []


def test_who_closes_the_parts_early_ends_their_workers(tmp_path, work, names):
    (tmp_path / "parts" / "00000").mkdir(parents=True)  # finished by an earlier run
    with closing(computed_parts(tmp_path / "parts", [names] * 3, work.hang, workers=2)) as folders:
        next(folders)
        wait_until(lambda: len(list(names.iterdir())) == 2)
    assert left(names) == []
