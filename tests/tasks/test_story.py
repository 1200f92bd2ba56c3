"""A run's story: the plan it began with, and what became of every stage."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from configs.base import Settings
from eval.report_run import summary
from tasks.report import report
from tasks.run import Run, active
from tasks.stage import Metrics, stage
from tasks.store import Artifact, Store
from tasks.story import expect, head_of, story_of_this_run


class Knobs(Settings):
    value: int = 1


@dataclass(frozen=True)
class Planned:
    stage: str
    action: str
    why: str = ""
    seconds: float | None = None
    bytes: int | None = None


@stage(version=1)
def collect(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text("rows")
    return {}


@stage(version=1)
def dedup(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text(str(settings.value))
    return {}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_the_story_says_what_was_reused_and_what_was_computed(store):
    with active(Run(store=store)):
        dedup(collect(settings=Knobs()), settings=Knobs())
    run = Run(store=store)
    expect(run, [Planned("collect", "reuse"), Planned("dedup", "compute", "value: 1 → 2", 9.0)])
    with active(run):
        dedup(collect(settings=Knobs()), settings=Knobs(value=2))
        story = story_of_this_run()
    assert story is not None
    assert [(h.stage, h.action) for h in story.happened] == [
        ("collect", "reused"),
        ("dedup", "computed"),
    ]
    expected = story.expected("dedup")
    assert expected is not None
    assert (expected.why, expected.seconds) == ("value: 1 → 2", 9.0)
    assert summary(story).startswith("2 stages: 1 computed, 1 reused. Expected 9.0 s")
    assert "1 computed, 1 reused" in head_of(run)


def test_a_retry_is_measured_by_the_first_plan_and_owns_what_was_computed_before(store):
    first = Run(store=store)
    expect(first, [Planned("collect", "compute"), Planned("dedup", "compute")])
    with active(first):
        rows = collect(settings=Knobs())
    retried = Run(store=store, run_id=first.run_id)
    expect(retried, [Planned("collect", "reuse"), Planned("dedup", "compute")])
    with active(retried):
        dedup(collect(settings=Knobs()), settings=Knobs())
    planned = [e.action for e in retried.story.planned]
    assert planned == ["compute", "compute"]
    happened = retried.story.happened["collect"]
    assert (happened.action, happened.why) == ("computed", "before this run was resumed")
    assert rows.key == happened.key


def test_the_report_of_a_run_has_its_story_and_the_same_key_without_one(store):
    from configs.evaluate_stage import ReportSettings

    run = Run(store=store)
    expect(run, [Planned("collect", "compute", "never computed")])
    with active(run):
        page = report(collect(settings=Knobs()), settings=ReportSettings(profile="tiny"))
    assert "never computed" in page.file("report.html").read_text()
    other = Run(store=store)
    with active(other):
        again = report(collect(settings=Knobs()), settings=ReportSettings(profile="tiny"))
    assert again.key == page.key
    assert other.story.happened["report"].action == "reused"


def test_outside_of_a_run_there_is_no_story():
    assert story_of_this_run() is None
