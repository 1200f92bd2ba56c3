"""What a run asks of its stages beyond their result: every byte checked, and no silence."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.base import Settings
from tasks.progress import report
from tasks.run import Run, active
from tasks.stage import Metrics, stage
from tasks.stage_log import StageLog
from tasks.store import About, Artifact, Store, nothing
from tasks.tracker import Untracked
from tasks.watchdog import Stalled

CALLS: list[str] = []
PATIENCE = 2 / 60  # minutes, also for all that a stage does before its first report
SILENT = threading.Event()


class Nothing(Settings):
    pass


@stage(version=1)
def write(out: Path, *, settings: Nothing) -> Metrics:
    CALLS.append("write")
    (out / "text.txt").write_text("hello")
    return {}


@stage(version=1)
def hang(out: Path, *, settings: Nothing) -> Metrics:
    report(3, 10, "AC")
    SILENT.wait(3600)
    return {}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    CALLS.clear()
    return Run(store=Store(tmp_path))


def test_a_changed_byte_is_found_when_asked_and_that_stage_recomputed(run: Run) -> None:
    with active(run):
        made = write(settings=Nothing())
        made.file("text.txt").write_text("jello")  # the same size
        write(settings=Nothing())
        assert CALLS == ["write"], "sizes alone cannot tell"
    with active(replace(run, verify=True)):
        again = write(settings=Nothing())
        write(settings=Nothing())
    assert CALLS == ["write", "write"]
    assert again.file("text.txt").read_text() == "hello"


def test_a_stage_that_hangs_fails_and_nothing_is_published(run: Run) -> None:
    with (
        active(replace(run, stall_minutes=PATIENCE)),
        pytest.raises(Stalled, match=r"hang made no progress.*3 of 10 AC"),
    ):
        hang(settings=Nothing())
    assert not list(run.store.root.glob("hang/*"))


class HangingStore(Store):
    """A store whose server does not answer any more, in one of its three transfers."""

    where = ""

    def fetch(self, ref: object) -> None:
        self._hang("fetch")

    def publish(self, work: Path, about: About = nothing, **fields: Any) -> Artifact:
        self._hang("publish")
        return super().publish(work, about, **fields)

    def share(self, artifact: Artifact) -> Artifact:
        self._hang("share")
        return artifact

    def _hang(self, where: str) -> None:
        if where == self.where:
            report(1, 7, "files moved")
            SILENT.wait(3600)


@stage(version=1)
def read(out: Path, text: Artifact, *, settings: Nothing) -> Metrics:
    CALLS.append("read")
    return {}


@pytest.mark.parametrize(
    ("where", "last", "computed"),
    [
        ("fetch", "read made no progress", ["write"]),
        ("publish", "write made no progress", ["write"]),
        ("share", "write made no progress", ["write"]),
    ],
)
def test_a_transfer_that_hangs_fails_its_stage(run: Run, where: str, last: str, computed) -> None:
    store = HangingStore(run.store.root)
    if where == "share":
        with active(run):
            write(settings=Nothing())
    store.where = where
    ended: list[str] = []
    tracker = Told(ended)
    watched = replace(run, store=store, stall_minutes=PATIENCE, tracker=tracker)
    with active(watched), pytest.raises(Stalled, match=rf"{last}.*1 of 7 files moved"):
        read(write(settings=Nothing()), settings=Nothing())
    assert computed == CALLS
    assert ended == {"fetch": ["FINISHED"], "publish": ["FAILED"], "share": []}[where]


class Told(Untracked):
    """Remembers how each stage ended."""

    def __init__(self, ended: list[str]) -> None:
        super().__init__()
        self._ended = ended

    def stage(self, *about: Any) -> StageLog:
        log = super().stage(*about)
        log.finish = lambda status: self._ended.append(status)
        return log
