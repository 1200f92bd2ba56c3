"""Copies of shared results on one machine: one process at a time puts one in its place."""

import threading
from pathlib import Path

from tasks.progress import listening
from tasks.shared_store import SharedStore

KEY = "0123456789abcdef"


def made(store: SharedStore, rows: str) -> None:
    work = store.work("collect", KEY)
    work.mkdir(parents=True)
    (work / "rows.jsonl").write_text(rows)
    store.publish(
        work, stage="collect", version=1, key=KEY, settings={}, seconds=1.0,
        pipeline_run="r", created="now",
    )  # fmt: skip


def test_a_winner_is_taken_over_only_when_nobody_else_copies_it(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    first, second = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    for store in (first, second):
        assert store.find("collect", KEY)[0] is None  # both are about to compute it
    made(first, rows="mine")
    waits = threading.Event()

    def compute() -> None:
        with listening(lambda _, __, note: waits.set() if "waiting" in note else None):
            made(second, rows="yours")

    thread = threading.Thread(target=compute)
    with SharedStore(tmp_path / "b", url).lock(f"fetch-collect-{KEY}"):
        thread.start()
        assert waits.wait(120)
        rows = second.folder("collect", KEY) / "rows.jsonl"
        assert rows.read_text() == "yours"
    thread.join(120)

    assert rows.read_text() == "mine"
