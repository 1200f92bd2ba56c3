"""`klear store` and `klear lineage` as a user types them."""

import json
import os
import time
from pathlib import Path

import pytest
from processes import free_ports

from klear.flows.cli.main import main
from klear.tasks.engine.run import Run, active
from klear.tasks.store.gc import damaged, find_garbage, remove
from klear.tasks.store.lineage import results
from klear.tasks.store.shared import SharedStore
from klear.tasks.store.store import MANIFEST, Store
from tests.tasks.manifests_by_hand import Knobs, collect, publish, report

A, B = Knobs(text="a" * 1500), Knobs(text="b" * 1500)
dedup = report.named("dedup")
pytestmark = pytest.mark.usefixtures("in_this_process")


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
    return sorted(w.name.rpartition("/")[0] for w in find_garbage(store, days)[0])


def test_ls_and_status_count_what_is_there_also_while_the_servers_are_away(
    store, monkeypatch, capsys
):
    assert main(["store", "ls"]) == 0
    assert capsys.readouterr().out.count("collect/") == 2
    for name, port in zip(("PREFECT", "MLFLOW"), free_ports(2), strict=True):
        monkeypatch.setenv(f"KLEAR_{name}_PORT", str(port))
    assert main(["status"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    away = [["✗", name, name, "does", "not", "answer"] for name in ("prefect", "mlflow")]
    assert [line[:6] for line in lines[1:4]] == [*away, ["✗", "worker", "down"]]
    assert lines[5][:4] == ["collect", "2", "3.0", "kB"]
    assert [line[:2] for line in lines[6:9]] == [["dedup", "2"], ["report", "1"], ["all", "5"]]


def test_gc_lists_first_and_removes_only_when_told_what_no_report_needs_and_no_run_holds(
    store: Store, capsys
):
    """A long SFT reads old results that no report has needed yet: while a run is under way nothing
    published is waste."""
    rubbish = next(w for w in find_garbage(store, days=0)[0] if w.name.startswith("collect"))
    with store.lock(rubbish.name.replace("/", "-")):
        assert not remove(store, rubbish)
        assert names(store) == []
    assert main(["store", "gc", "--days", "0"]) == 0
    assert "would go" in capsys.readouterr().out
    assert len(results(store)) == 5
    assert main(["store", "gc", "--days", "0", "--yes"]) == 0
    assert "2 folders, 3.0 kB freed" in capsys.readouterr().out
    assert [p.stage for p in results(store)] == ["collect", "dedup", "report"]
    assert all(wrong == "" for _, wrong in damaged(store))
    assert names(store) == []


def test_a_run_that_begins_while_results_are_removed_keeps_what_it_reused(store: Store):
    rubbish = [g for g in find_garbage(store, 0)[0] if g.name.startswith("collect")]
    with store.lock("run-abc"):
        assert not any(remove(store, g) for g in rubbish)
    assert all(remove(store, g) for g in rubbish)


def test_what_klear_eval_scored_and_on_what_is_kept(store: Store):
    with active(Run(store=store)):
        report.named("eval_model")(collect.named("benchmark")(settings=A), settings=A)
    assert not {"eval_model", "benchmark"} & {*names(store)}


def test_while_the_state_of_a_run_cannot_be_read_results_are_kept(store: Store):
    assert names(store) == ["collect", "dedup"]
    (store.root / ".runs").mkdir()
    (store.root / ".runs" / "config.json").touch()  # a power cut
    garbage, why = find_garbage(store, 0)
    assert garbage == []
    assert "config.json cannot be read" in why


def test_what_a_run_made_that_is_to_be_continued_is_kept(store: Store):
    with active(Run(store=store, run_id="dead")):
        dedup(collect(settings=Knobs(text="c")), settings=A)
    assert names(store) == ["collect", "collect", "dedup", "dedup"]
    (store.root / ".runs").mkdir()
    (store.root / ".runs" / "config.json").write_text('{"mlflow_run": "dead"}')
    assert names(store) == ["collect", "dedup"]


def test_what_an_ablation_shows_what_is_young_and_what_that_was_made_from_is_kept(store: Store):
    for path in store.root.glob(f"collect/*/{MANIFEST}"):  # old; what was made from it is young
        old = json.loads(path.read_text()) | {"created": "2020-01-01T00:00:00+00:00"}
        path.write_text(json.dumps(old))
    assert names(store, days=1) == []
    assert names(store)
    with active(Run(store=store)):
        runs = dedup(collect(settings=B), settings=A)
        report.named("ablate_table6_lm_weight")(runs, settings=A)
    assert names(store) == []


def test_interrupted_work_goes_when_it_is_old(store: Store):
    work = store.work("sft", "k")
    work.mkdir(parents=True)
    (work / "half").write_text("x" * 10)
    assert ".work/sft" not in names(store, days=1)
    long_ago = time.time() - 10 * 86_400
    for path in (work / "half", work):
        os.utime(path, (long_ago, long_ago))
    (interrupted,) = [w for w in find_garbage(store, days=1)[0] if w.name == ".work/sft/k"]
    assert interrupted.bytes == 10
    assert remove(store, interrupted)
    assert not work.exists()


def test_verify_reads_the_shared_store_too(tmp_path, monkeypatch, capsys):
    """One result in a shared store (a folder stands for the bucket)."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    monkeypatch.setenv("KLEAR_SHARED", f"file://{tmp_path}/bucket")
    with active(Run(store=SharedStore(tmp_path / "store", f"file://{tmp_path}/bucket"))):
        collect(settings=A)
    assert main(["store", "verify"]) == 0
    assert capsys.readouterr().out == "2 results read, 0 damaged\n"  # the copy here, and there
    next((tmp_path / "bucket").glob("collect/*/*/rows.jsonl")).write_text("b" * 1500)
    assert main(["store", "verify"]) == 1
    assert "rows.jsonl is missing or was changed" in capsys.readouterr().out


RESULT = {
    "name": "aime24", "k": 4, "ci_low": 0.25, "ci_high": 0.75,
    "statement": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 64, "grader_version": 2,
                  "checkpoint": "c0ffee"},
}  # fmt: skip
PROTOCOL = "aime24 avg@4 56.5 % [25.0, 75.0], temperature 0.6, top_p 0.95, max_tokens 64"
OLD, NEW = "0123456789abcdef", "fedcba9876543210"


@pytest.fixture
def chains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checkpoints of the same rows, and their scores; the second one is the newest."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    root = tmp_path / "store"
    publish(root, "select", OLD)
    for day, (key, average) in enumerate(((OLD, 0.25), (NEW, 0.565)), 1):
        dates = {"created": f"2026-01-0{day}T00:00:00+00:00"}
        publish(root, "sft", key, inputs=(("select", OLD),), **dates)
        metrics = {"aime24/avg": average, "aime24/pass_at_k": 0.5}
        publish(root, "evaluate_sft", key, inputs=(("sft", key),), metrics=metrics, **dates)
        results = json.dumps([RESULT | {"avg": average}])
        (root / "evaluate_sft" / key / "results.json").write_text(results)


@pytest.mark.parametrize(("name", "last"), [
    ("sft/aime24", "evaluate_sft"), ("evaluate_sft/aime24/pass_at_k", "evaluate_sft"),
    ("aime24", "evaluate_sft"), ("sft", "sft"), (f"sft/{NEW[:6]}", "sft"), (f"sft/{NEW}", "sft"),
])  # fmt: skip
def test_a_score_as_people_write_it_and_a_checkpoint_lead_to_the_rows(
    chains, tmp_path, capsys, name, last
):
    assert main(["lineage", name]) == 0
    chain, _, rest = capsys.readouterr().out.partition("\n\n")
    stages = ("select", "sft", "evaluate_sft")
    lineage = [line.split()[0] for line in chain.splitlines()]
    assert [r.split("/")[0] for r in lineage] == [*stages[: stages.index(last) + 1]]
    assert lineage[1] == f"sft/{NEW}"
    assert (PROTOCOL in rest) == (last == "evaluate_sft")
    assert main(["lineage", name, "--html", str(tmp_path / "lineage.html")]) == 0
    assert f"{NEW[:8]}</code>" in (tmp_path / "lineage.html").read_text()


@pytest.mark.parametrize(("name", "meant"), [
    ("rl_code/aime24", ""), ("sft/zzz", ""), ("12.3", " ("), ("aime24/no", ""),
    ("sft/amie24", "; did you mean sft/aime24?"), ("selct", "; did you mean select?"),
])  # fmt: skip
def test_what_is_not_there_fails_and_says_what_a_name_may_be(chains, capsys, name, meant):
    assert main(["lineage", name]) == 1
    assert f"no result {name}{meant}" in capsys.readouterr().out
