"""`klear store` as a user types it."""

from pathlib import Path

import pytest

from configs.settings.base import Settings
from flows.cli.main import main
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.shared import SharedStore
from tasks.store.store import Artifact, Store


class Knobs(Settings):
    text: str = "a"


@stage(version=1)
def collect(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(settings.text * 1500)
    return {}


@stage(version=1)
def report(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "page").write_text(settings.text)
    return {}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    store = Store(tmp_path / "store")
    with active(Run(store=store)):
        report(collect(settings=Knobs()), settings=Knobs())
        collect(settings=Knobs(text="b"))
    return store


def test_ls_and_du_count_what_is_there(store, capsys):
    assert main(["store", "ls", "collect"]) == 0
    assert capsys.readouterr().out.count("collect/") == 2

    assert main(["store", "du"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("collect"))
    assert line.split()[1:] == ["2", "3.0", "kB"]


def test_ls_says_that_it_found_nothing_and_what_was_meant(store, capsys):
    assert main(["store", "ls", "colect"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"no results of colect in {store.root}; did you mean collect?\n"


def test_gc_lists_first_and_removes_only_when_told(store, capsys):
    assert main(["store", "gc", "--days", "0"]) == 0
    assert "would go" in capsys.readouterr().out
    assert len(list(store.root.glob("collect/*"))) == 2

    assert main(["store", "gc", "--days", "0", "--yes"]) == 0
    assert "1 folders, 1.5 kB freed" in capsys.readouterr().out
    assert len(list(store.root.glob("collect/*"))) == 1


def test_verify_fails_and_names_the_damaged_file(store, capsys):
    assert main(["store", "verify"]) == 0
    next(store.root.glob("report/*/page")).write_text("b")

    assert main(["store", "verify"]) == 1
    assert "page was changed" in capsys.readouterr().out


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedStore:
    """One result in a shared store (a folder stands for the bucket), and a killed upload."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    url = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("KLEAR_SHARED", url)
    store = SharedStore(tmp_path / "store", url)
    with active(Run(store=store)):
        collect(settings=Knobs())
    left = tmp_path / "bucket" / "sft" / "key" / "killed"
    left.mkdir(parents=True)
    (left / "weights").write_text("half")
    return store


def test_verify_reads_the_shared_store_too(shared, tmp_path, capsys):
    assert main(["store", "verify"]) == 0
    assert capsys.readouterr().out == "2 results read, 0 damaged\n"  # the copy here, and there
    next((tmp_path / "bucket").glob("collect/*/*/rows")).write_text("b" * 1500)

    assert main(["store", "verify"]) == 1
    assert "rows is missing or was changed" in capsys.readouterr().out


def test_uploads_that_nothing_names_go_only_when_told_twice(shared, tmp_path, capsys):
    assert main(["store", "gc", "--yes"]) == 0
    assert "bucket/sft/key/killed" in capsys.readouterr().out
    assert (tmp_path / "bucket/sft/key/killed/weights").exists()

    assert main(["store", "gc", "--yes", "--uploads"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not (tmp_path / "bucket/sft/key/killed/weights").exists()
    assert shared.unnamed_uploads() == []
