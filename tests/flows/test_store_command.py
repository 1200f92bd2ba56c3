"""`klear store` as a user types it: what is there, what is damaged, and what nothing needs."""

import json
import os
import time
from pathlib import Path

import pytest
from processes import free_ports

from klear.flows.cli.main import main
from klear.tasks.stage.run import Run, active
from klear.tasks.store.care import damaged, remove, waste
from klear.tasks.store.lineage import results
from klear.tasks.store.shared import SharedStore
from klear.tasks.store.store import MANIFEST, Store
from tests.tasks.stages_by_hand import Knobs, collect, report

A, B = Knobs(text="a" * 1500), Knobs(text="b" * 1500)
dedup = report.named("dedup")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """collect(a) → dedup → report, and collect(b) → dedup, which no report needs."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    store = Store(tmp_path / "store")
    with active(Run(store=store)):
        report(dedup(collect(settings=A), settings=A), settings=A)
        dedup(collect(settings=B), settings=A)
    return store


def names(store: Store, days: float = 0.0) -> list[str]:
    return sorted(w.name.rpartition("/")[0] for w in waste(store, days)[0])


def test_ls_and_status_count_what_is_there_also_while_the_servers_are_away(
    store, monkeypatch, capsys
):
    assert main(["store", "ls"]) == 0
    assert capsys.readouterr().out.count("collect/") == 2
    for name, port in zip(("PREFECT", "MLFLOW"), free_ports(2), strict=True):
        monkeypatch.setenv(f"KLEAR_{name}_PORT", str(port))
    assert main(["status"]) == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert said[1:4] == [["✗", name, "down"] for name in ("prefect", "mlflow", "worker")]
    assert said[5][:4] == ["collect", "2", "3.0", "kB"]
    assert [line[:2] for line in said[6:9]] == [["dedup", "2"], ["report", "1"], ["all", "5"]]


def test_ls_says_that_it_found_nothing(own_home, capsys):
    assert main(["store", "ls"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"no results in {own_home}/store\n"


def test_gc_lists_first_and_removes_only_when_told_what_no_report_needs(store, capsys):
    assert main(["store", "gc", "--days", "0"]) == 0
    assert "would go" in capsys.readouterr().out
    assert len(results(store)) == 5

    assert main(["store", "gc", "--days", "0", "--yes"]) == 0
    assert "2 folders, 3.0 kB freed" in capsys.readouterr().out
    assert [p.stage for p in results(store)] == ["collect", "dedup", "report"]
    assert all(wrong == "" for _, wrong in damaged(store))
    assert names(store) == []


def test_the_page_of_an_ablation_keeps_its_runs_too(store: Store):
    with active(Run(store=store)):
        runs = dedup(collect(settings=B), settings=A)
        report.named("ablate_table6_lm_weight")(runs, settings=A)
    assert names(store) == []


def test_young_results_are_kept_with_what_they_were_made_from(store: Store):
    for path in store.root.glob(f"collect/*/{MANIFEST}"):  # old; what was made from it is young
        old = json.loads(path.read_text()) | {"created": "2020-01-01T00:00:00+00:00"}
        path.write_text(json.dumps(old))
    assert names(store, days=1) == []


def test_what_a_run_holds_is_not_removed_and_while_one_is_under_way_nothing_published_is_waste(
    store: Store,
):
    """A long SFT reads old results that no report has needed yet."""
    rubbish = next(w for w in waste(store, days=0)[0] if w.name.startswith("collect"))
    with store.lock(rubbish.name.replace("/", "-")):
        assert not remove(store, rubbish)
        assert names(store) == []
    assert rubbish.path.exists()


def test_interrupted_work_goes_when_it_is_old(store: Store):
    work = store.work("sft", "k")
    work.mkdir(parents=True)
    (work / "half").write_text("x" * 10)
    assert ".work/sft" not in names(store, days=1)
    long_ago = time.time() - 10 * 86_400
    for path in (work / "half", work):
        os.utime(path, (long_ago, long_ago))
    (found,) = [w for w in waste(store, days=1)[0] if w.name == ".work/sft/k"]
    assert found.bytes == 10
    assert remove(store, found)
    assert not work.exists()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedStore:
    """One result in a shared store (a folder stands for the bucket)."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    url = f"file://{tmp_path}/bucket"
    monkeypatch.setenv("KLEAR_SHARED", url)
    store = SharedStore(tmp_path / "store", url)
    with active(Run(store=store)):
        collect(settings=A)
    return store


def test_verify_reads_the_shared_store_too(shared, tmp_path, capsys):
    assert main(["store", "verify"]) == 0
    assert capsys.readouterr().out == "2 results read, 0 damaged\n"  # the copy here, and there
    next((tmp_path / "bucket").glob("collect/*/*/rows.jsonl")).write_text("b" * 1500)

    assert main(["store", "verify"]) == 1
    assert "rows.jsonl is missing or was changed" in capsys.readouterr().out
