"""The plan says what would be reused, resumed and computed, and why; fast in a large store."""

import os
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.base import Runtime, Settings
from klear.configs.settings.data import DedupSettings
from klear.tasks.data.dedup import dedup
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.planning.plan import Planner
from klear.tasks.planning.work import MOST_READ, StoreHistory
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.store.store import Artifact, InputRef, Store
from tests.tasks.manifests_by_hand import publish

pytestmark = pytest.mark.usefixtures("in_this_process")


class How(Runtime):
    workers: int = 1


class Part(Settings):
    name: str
    size: int = 1


class Knobs(Settings):
    rate: float = 0.5
    parts: tuple[Part, ...] = (Part(name="a"), Part(name="b"))
    runtime: How = How()
    later: int = 0


@stage(version=1)
def gather(out: Path, *, settings: Knobs, seed: int) -> Metrics:
    (out / "rows").write_text(f"{settings.rate} {seed}")
    return {}


@stage(version=1)
def refine(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(rows.file("rows").read_text().upper())
    return {}


PLAIN = Knobs()
OTHER = Knobs(rate=0.75)
REUSED = ("reuse", "")


def run(store: Path, first: Knobs = PLAIN) -> None:
    with active(Run(store=Store(store))):
        refine(gather(settings=first), settings=PLAIN)


def planned(
    store: Path, first: Knobs = PLAIN, second: Knobs = PLAIN, **options: Any
) -> list[PlannedStage]:
    planner = Planner(Run(store=Store(store), **options))
    rows = planner.plan_stage(gather, (), first)
    planner.plan_stage(refine, (rows,), second)
    return planner.stages


def actions(stages: list[PlannedStage]) -> list[tuple[str, str]]:
    return [(s.action, s.why) for s in stages]


def computed(why: str) -> tuple[str, str]:
    return "compute", why


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that holds both stages by the plain settings."""
    store = tmp_path_factory.mktemp("made")
    run(store)
    return store


@pytest.mark.parametrize(
    ("now", "first", "second"),
    [
        ({}, REUSED, REUSED),
        ({"second": OTHER}, REUSED, computed("rate: 0.5 → 0.75")),
        ({"second": Knobs(parts=(Part(name="a"), Part(name="b", size=7)))},
         REUSED, computed("parts.b.size: 1 → 7")),
        ({"second": Knobs(runtime=How(workers=9))}, REUSED, REUSED),  # how, and not what
        ({"second": Knobs(rate=0.75, runtime=How(workers=9))}, REUSED,
         computed("rate: 0.5 → 0.75")),
        ({"first": Knobs(later=2)}, computed("later: 0 → 2"), computed("after gather")),
        ({"seed": 4}, computed("seed: 0 → 4"), computed("after gather")),
        ({"force": frozenset({"gather"})}, computed("forced"), computed("after gather")),
        ({"first": Knobs(rate=0.1), "second": OTHER},
         computed("rate: 0.5 → 0.1"), computed("after gather; rate: 0.5 → 0.75")),
    ],
)  # fmt: skip
def test_what_is_there_is_reused_and_what_differs_is_named(before, now, first, second):
    assert actions(planned(before, **now)) == [first, second]


def test_other_rows_of_an_input_are_named_and_a_store_of_other_things_not_at_length(tmp_path):
    assert actions(planned(tmp_path)) == [computed("never computed"), computed("after gather")]
    assert not list(tmp_path.rglob("rows"))  # planning makes nothing
    run(tmp_path)
    many = Knobs(parts=tuple(Part(name=f"p{i}") for i in range(20)))
    assert planned(tmp_path, second=many)[1].why.endswith("; and 41 more")
    with active(Run(store=Store(tmp_path))):
        gather(settings=OTHER)
    assert actions(planned(tmp_path, OTHER)) == [REUSED, computed("other rows from gather")]


def test_a_resumed_stage_says_where_and_counts_what_is_left(tmp_path):
    run(tmp_path)
    next(tmp_path.glob("gather/*/rows")).unlink()  # its folder stays, and says how long it took
    key = next(tmp_path.glob("gather/*")).name
    scratch = Store(tmp_path).work("gather", key) / ".resume"
    scratch.mkdir(parents=True)
    (scratch / "progress.json").write_text('{"done": 1500, "total": 2000, "note": ""}')
    first = planned(tmp_path)[0]
    seconds = Store(tmp_path).manifest(InputRef(stage="gather", key=key, digest="")).seconds
    assert first.action == "resume"
    assert first.why.endswith("rows cannot be read (No such file or directory) at 1,500 of 2,000")
    assert first.seconds == pytest.approx(seconds / 4)


STAGES, RESULTS = 200, 12


def test_200_stages_in_a_store_of_thousands_take_seconds_at_most(tmp_path, quickest):
    metrics = {"kept": 90.0, "rejected": 10.0, **{f"kept/source_{i}": 1.0 for i in range(20)}}
    fields = {"settings": DedupSettings(), "version": dedup.version, "metrics": metrics}
    for i in range(STAGES * RESULTS):
        publish(tmp_path, f"dedup_{i % STAGES}", f"key{i // STAGES}", **fields)

    def plan_all() -> None:
        planner = Planner(Run(store=Store(tmp_path)))
        rows = Artifact(stage="collect", key="k", digest="rows", folder=Path())
        for i in range(STAGES):
            rows = planner.plan_stage(
                dedup.named(f"dedup_{i}"), (rows,), DedupSettings(jaccard=0.9)
            )
        assert len(planner.stages) == STAGES
        assert planner.stages[0].why == "jaccard: 0.7 → 0.9"

    assert quickest(plan_all, below=5.0) < 5.0  # 1 s is the aim


def test_only_the_newest_results_of_a_stage_are_read_and_of_these_what_can_be(tmp_path):
    for i in range(MOST_READ + 5):
        manifest = publish(tmp_path, "dedup", f"{i:04}", created=f"2026-01-01T00:{i:02}:00+00:00")
        os.utime(tmp_path / "dedup" / manifest.key / "manifest.json", (i, i))
    keys = [p.manifest.key for p in StoreHistory(Store(tmp_path)).results_of("dedup")]
    assert keys == [f"{i:04}" for i in reversed(range(5, MOST_READ + 5))]
    publish(tmp_path, "sft")
    (tmp_path / "sft" / "torn").mkdir()
    (tmp_path / "sft" / "torn" / "manifest.json").write_text('{"stage": "ded')
    (tmp_path / "sft" / "empty").mkdir()
    of_sft = StoreHistory(Store(tmp_path)).results_of("sft", "nothing")
    assert [p.folder.name for p in of_sft] == ["k"]
