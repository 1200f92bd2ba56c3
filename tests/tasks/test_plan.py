"""The plan says what would be reused, resumed and computed, and names the difference."""

from pathlib import Path
from typing import Annotated

import pytest

from configs.settings.base import DEFAULT_NOT_IN_KEY, Runtime, Settings
from tasks.planning.plan import Planner
from tasks.report.run_story import PlannedStage
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact, InputRef, Store


class How(Runtime):
    workers: int = 1


class Part(Settings):
    name: str
    size: int = 1


class Knobs(Settings):
    rate: float = 0.5
    parts: tuple[Part, ...] = (Part(name="a"), Part(name="b"))
    how: How = How()
    later: Annotated[int, DEFAULT_NOT_IN_KEY] = 0


@stage(version=1)
def gather(out: Path, *, settings: Knobs, seed: int) -> Metrics:
    (out / "rows").write_text(f"{settings.rate} {seed}")
    return {}


@stage(version=1)
def refine(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(rows.file("rows").read_text().upper())
    return {}


def both(first: Knobs, second: Knobs) -> None:
    refine(gather(settings=first), settings=second)


def run(store: Path, first: Knobs = Knobs(), second: Knobs = Knobs(), seed: int = 0) -> None:  # noqa: B008
    with active(Run(store=Store(store), seed=seed)):
        both(first, second)


def planned(
    store: Path,
    first: Knobs | None = None,
    second: Knobs | None = None,
    seed: int = 0,
    force: frozenset[str] = frozenset(),
) -> list[PlannedStage]:
    planner = Planner(Run(store=Store(store), seed=seed, force=force))
    rows = planner.look(gather, (), first or Knobs())
    planner.look(refine, (rows,), second or Knobs())
    return planner.stages


def actions(stages: list[PlannedStage]) -> list[tuple[str, str]]:
    return [(s.action, s.why) for s in stages]


def test_an_empty_store_computes_everything_and_planning_makes_nothing(tmp_path):
    assert actions(planned(tmp_path)) == [
        ("compute", "never computed"),
        ("compute", "after gather"),
    ]
    assert not list(tmp_path.rglob("rows"))


def test_what_is_there_is_reused_with_its_measured_cost(tmp_path):
    run(tmp_path)

    stages = planned(tmp_path)

    assert actions(stages) == [("reuse", ""), ("reuse", "")]
    assert stages[0].bytes == len("0.5 0")
    assert stages[0].seconds is not None


def test_the_setting_that_differs_is_named_with_both_values(tmp_path):
    run(tmp_path)

    assert actions(planned(tmp_path, second=Knobs(rate=0.75)))[1] == (
        "compute",
        "rate: 0.5 → 0.75",
    )
    changed = Knobs(parts=(Part(name="a"), Part(name="b", size=7)))
    assert actions(planned(tmp_path, second=changed))[1][1] == "parts.b.size: 1 → 7"


def test_runtime_settings_are_no_difference(tmp_path):
    run(tmp_path)

    assert actions(planned(tmp_path, second=Knobs(how=How(workers=9))))[1] == ("reuse", "")
    both_differ = Knobs(rate=0.75, how=How(workers=9))
    assert actions(planned(tmp_path, second=both_differ))[1][1] == "rate: 0.5 → 0.75"


def test_a_setting_that_came_later_keeps_earlier_results_and_is_named_once_used(
    tmp_path,
):
    run(tmp_path)
    assert {line.action for line in planned(tmp_path)} == {"reuse"}
    first, _ = planned(tmp_path, first=Knobs(later=2))
    assert (first.action, first.why) == ("compute", "later: 0 → 2")

    run(tmp_path / "used", first=Knobs(later=2))
    first, _ = planned(tmp_path / "used")
    assert first.why == "later: 2 → 0"  # switched off again


def test_another_seed_is_named_where_the_stage_is_random(tmp_path):
    run(tmp_path)

    assert actions(planned(tmp_path, seed=4)) == [
        ("compute", "seed: 0 → 4"),
        ("compute", "after gather"),
    ]


def test_other_rows_of_an_input_are_named(tmp_path):
    run(tmp_path)
    with active(Run(store=Store(tmp_path))):
        gather(settings=Knobs(rate=0.25))

    assert actions(planned(tmp_path, first=Knobs(rate=0.25))) == [
        ("reuse", ""),
        ("compute", "other rows from gather"),
    ]


def test_a_forced_stage_is_computed_and_what_follows_waits_for_its_rows(tmp_path):
    run(tmp_path)

    assert actions(planned(tmp_path, force=frozenset({"gather"}))) == [
        ("compute", "forced"),
        ("compute", "after gather"),
    ]


def test_an_interrupted_stage_is_resumed(tmp_path):
    Store(tmp_path).work("gather", planned(tmp_path)[0].key).mkdir(parents=True)

    assert actions(planned(tmp_path))[0] == ("resume", "was interrupted")


def test_a_resumed_stage_says_where_and_counts_what_is_left(tmp_path):
    run(tmp_path)
    next(tmp_path.glob("gather/*/rows")).unlink()  # its folder stays, and says how long it took
    key = next(tmp_path.glob("gather/*")).name
    scratch = Store(tmp_path).work("gather", key) / ".resume"
    scratch.mkdir(parents=True)
    (scratch / "progress.json").write_text('{"done": 1500, "total": 2000, "note": ""}')

    first = planned(tmp_path)[0]
    whole = Store(tmp_path).manifest(InputRef(stage="gather", key=key, digest="")).seconds

    assert first.action == "resume"
    assert first.why.endswith("rows cannot be read (No such file or directory) at 1,500 of 2,000")
    assert first.seconds == pytest.approx(whole / 4)


def test_a_stage_below_a_new_one_also_names_its_own_change(tmp_path):
    run(tmp_path)

    assert actions(planned(tmp_path, first=Knobs(rate=0.1), second=Knobs(rate=0.75)))[1] == (
        "compute",
        "after gather; rate: 0.5 → 0.75",
    )


def test_a_store_of_other_things_explains_nothing_at_length(tmp_path):
    run(tmp_path)
    many = Knobs(parts=tuple(Part(name=f"p{i}") for i in range(20)))

    why = actions(planned(tmp_path, second=many))[1][1]
    assert why.endswith("; and 41 more")
