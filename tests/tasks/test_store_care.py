"""gc never takes what a report was made from; verify names every damaged result."""

import json
import os
import time
from pathlib import Path

import pytest

from configs.settings.base import Settings
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.care import damaged, published, remove, waste
from tasks.store.lineage import ancestors
from tasks.store.manifest import MANIFEST
from tasks.store.store import Artifact, Store


class Knobs(Settings):
    text: str = "a"


@stage(version=1)
def gather(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(settings.text)
    return {}


@stage(version=1)
def report(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    (out / "page").write_text(settings.text)
    return {}


refine = report.named("refine")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """gather(a) → refine → report, and gather(b) → refine, which no report needs."""
    store = Store(tmp_path)
    with active(Run(store=store)):
        report(refine(gather(settings=Knobs()), settings=Knobs()), settings=Knobs())
        refine(gather(settings=Knobs(text="b")), settings=Knobs())
    return store


def names(store: Store, days: float = 0.0) -> list[str]:
    return sorted(w.name.split("/")[0] for w in waste(store, days))


def text_of(store: Store, name: str) -> str:
    return (store.root / name / "rows").read_text()


def test_only_what_no_report_needs_is_waste(store: Store):
    found = waste(store, days=0)

    assert names(store) == ["gather", "refine"]
    assert [text_of(store, w.name) for w in found if w.name.startswith("gather")] == ["b"]


def test_the_page_of_an_ablation_keeps_its_runs_too(store: Store):
    with active(Run(store=store)):
        runs = refine(gather(settings=Knobs(text="b")), settings=Knobs())
        report.named("ablate_table6_lm_weight")(runs, settings=Knobs())

    assert names(store) == []


def test_young_results_are_kept_with_what_they_were_made_from(store: Store):
    for path in store.root.glob(f"gather/*/{MANIFEST}"):  # old; what was made from it is young
        old = json.loads(path.read_text()) | {"created": "2020-01-01T00:00:00+00:00"}
        path.write_text(json.dumps(old))

    assert names(store, days=1) == []


def test_removing_waste_leaves_the_report_reusable(store: Store):
    for rubbish in waste(store, days=0):
        assert remove(store, rubbish)

    assert [p.manifest.stage for p in published(store)] == ["gather", "refine", "report"]
    assert names(store) == []
    assert all(wrong == "" for _, wrong in damaged(store))


def test_what_a_run_holds_is_not_removed(store: Store):
    rubbish = next(w for w in waste(store, days=0) if w.name.startswith("gather"))
    with store.lock(rubbish.name.replace("/", "-")):
        assert not remove(store, rubbish)

    assert rubbish.path.exists()


def test_interrupted_work_goes_when_it_is_old(store: Store):
    work = store.work("sft", "k")
    work.mkdir(parents=True)
    (work / "half").write_text("x" * 10)
    assert "sft" not in " ".join(w.name for w in waste(store, days=1))

    long_ago = time.time() - 10 * 86_400
    for path in (work / "half", work):
        os.utime(path, (long_ago, long_ago))

    found = [w for w in waste(store, days=1) if w.name == ".work/sft/k"]
    assert [w.bytes for w in found] == [10]
    assert remove(store, found[0])
    assert not work.exists()


def test_one_flipped_byte_is_found_by_its_digest(store: Store):
    path = next(store.root.glob("gather/*/rows"))
    path.write_text("z")  # the same size

    wrong = [problem for _, problem in damaged(store) if problem]
    assert len(wrong) == 1
    assert "rows was changed since it was published" in wrong[0]


def test_ancestors_come_oldest_first_and_once(store: Store):
    last = next(p.manifest for p in published(store) if p.manifest.stage == "report")

    assert [m.stage for m in ancestors(store, last)] == ["gather", "refine"]


def test_nothing_published_is_waste_while_a_run_is_under_way(store: Store):
    """A long SFT reads old results that no report has needed yet."""
    assert names(store)
    with store.lock("sft-somekey"):
        assert names(store) == []
