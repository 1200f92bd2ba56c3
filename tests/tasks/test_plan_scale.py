"""Planning stays fast in a large store: what is read does not grow with what lies there."""

import os
from pathlib import Path

from configs.settings.data import DedupSettings
from tasks.data.dedup import dedup
from tasks.planning.history import MOST_READ, StoreHistory
from tasks.planning.plan import Planner
from tasks.stage.run import Run
from tasks.store.store import Artifact, Store
from tests.tasks.manifests_by_hand import publish

STAGES = 200


def cpu_seconds() -> float:
    return sum(os.times()[:2])


def plan_all(root: Path) -> tuple[Planner, float]:
    """A chain of `STAGES` stages with one changed setting each, and its CPU seconds."""
    planner, began = Planner(Run(store=Store(root))), cpu_seconds()
    rows = Artifact(stage="collect", key="k", digest="rows", folder=Path())
    for i in range(STAGES):
        rows = planner.look(dedup.named(f"dedup_{i}"), (rows,), DedupSettings(jaccard=0.9))
    return planner, cpu_seconds() - began


def fill(root: Path, each: int) -> None:
    """`each` earlier results of every stage."""
    metrics = {"kept": 90.0, "rejected": 10.0, **{f"kept/source_{i}": 1.0 for i in range(20)}}
    how = {"settings": DedupSettings(), "version": dedup.version, "metrics": metrics}
    for i in range(STAGES):
        for j in range(each):
            publish(root, f"dedup_{i}", f"key{j}", **how)


def test_200_stages_in_a_store_of_thousands_take_seconds_at_most(tmp_path):
    fill(tmp_path, 12)

    planner, seconds = plan_all(tmp_path)

    assert [s.stage for s in planner.stages] == [f"dedup_{i}" for i in range(STAGES)]
    assert planner.stages[0].why == "jaccard: 0.7 → 0.9"
    assert seconds < 5  # 1 s is the aim


def test_only_the_newest_results_of_a_stage_are_read(tmp_path):
    for i in range(MOST_READ + 5):
        manifest = publish(tmp_path, "dedup", f"{i:04}", created=f"2026-01-01T00:{i:02}:00+00:00")
        os.utime(tmp_path / "dedup" / manifest.key / "manifest.json", (i, i))

    keys = [p.manifest.key for p in StoreHistory(Store(tmp_path)).of("dedup")]
    assert keys == [f"{i:04}" for i in reversed(range(5, MOST_READ + 5))]


def test_what_cannot_be_read_is_left_out(tmp_path):
    publish(tmp_path, "dedup")
    (tmp_path / "dedup" / "torn").mkdir()
    (tmp_path / "dedup" / "torn" / "manifest.json").write_text('{"stage": "ded')
    (tmp_path / "dedup" / "empty").mkdir()

    assert [p.name for p in StoreHistory(Store(tmp_path)).of("dedup", "nothing")] == ["dedup/k"]
