"""Plan against outcome on the report's page, and the rejected rows with their reasons."""

import json

import pytest

from eval.page import Cell, Fold, Table
from eval.page_html import to_html
from eval.records import Problem, Rejected
from eval.report import build_page
from eval.report_rejected import rejected_section
from eval.report_run import run_section, summary
from eval.run_facts import RunFacts, StageOutput
from eval.run_story import Expected, Happened, RunStory
from eval.tables import write_table

STORY = RunStory(
    name="tiny-seed0",
    links={"MLflow": "http://127.0.0.1:5271/#/experiments/1/runs/ab"},
    planned=(
        Expected(stage="collect", action="reuse"),
        Expected(stage="sft", action="compute", why="learning_rate: 1 → 2", seconds=60),
    ),
    happened=(
        Happened(stage="collect", key="a", action="computed", why="rows are missing", seconds=2),
        Happened(stage="sft", key="b", action="computed", why="new", seconds=120,
                 url="http://127.0.0.1:5271/#/experiments/1/runs/cd"),
    ),
)  # fmt: skip


def rows_of(story: RunStory) -> dict[str, tuple]:
    table = [b for b in run_section(story) if isinstance(b, Table)][-1]
    return {row[0].text: row for row in table.rows if isinstance(row[0], Cell)}


def test_what_became_something_else_than_planned_says_so():
    _, outcome, *_ = rows_of(STORY)["collect"]
    assert (outcome.text, outcome.change, outcome.tone) == ("computed", "planned to reuse", "bad")
    assert outcome.detail == "rows are missing"


def test_what_went_as_planned_says_why_it_was_planned_and_how_long_it_took_instead():
    _, outcome, took = rows_of(STORY)["sft"]
    assert (outcome.detail, outcome.change) == ("learning_rate: 1 → 2", "")
    assert (took.text, took.detail, took.change) == ("2 min 00 s", "expected 1 min 00 s", "×2.0")


def test_disk_and_tokens_stand_beside_what_the_plan_assumed():
    story = RunStory(
        planned=(
            Expected(stage="distill", action="compute", bytes=2e9, tokens=500, basis="assumed"),
        ),
        happened=(
            Happened(stage="distill", key="a", action="computed", bytes=1_500, tokens=1_000),
        ),
    )
    _, _, _, disk, tokens = rows_of(story)["distill"]
    assert (disk.text, disk.detail) == ("1.5 kB", "assumed 2.0 GB")
    assert (tokens.text, tokens.detail) == ("1,000", "assumed 500")


def test_the_sum_says_which_stages_nobody_had_measured():
    assert summary(STORY) == (
        "2 stages: 2 computed. Computing took 2 min 02 s; 1 stages had never been measured before."
    )


def test_the_page_leads_to_the_run_and_to_every_stages_run():
    page = to_html(build_page(RunFacts([]), "tiny", 0, STORY))
    assert '<a href="http://127.0.0.1:5271/#/experiments/1/runs/cd">sft</a>' in page
    assert 'href="http://127.0.0.1:5271/#/experiments/1/runs/ab"' in page


def test_a_link_that_is_no_web_address_is_refused():
    with pytest.raises(ValueError, match="no http address"):
        Cell("here", link="javascript:alert(1)")


def test_without_a_story_the_page_has_no_such_section():
    assert run_section(None) == []


def test_every_frequent_reason_stands_with_its_count_and_one_of_its_rows(tmp_path):
    folder = tmp_path / "dedup"
    folder.mkdir()
    write_table(folder / "kept.parquet", Problem, [Problem(domain="math", prompt="a", answer="1")])
    rejected = [
        Rejected(id=str(i), reason=reason, row=json.dumps({"prompt": f"prompt {i}"}))
        for i, reason in enumerate(["same query as 12345678", "same query as 87654321", "empty"])
    ]
    write_table(folder / "rejected.parquet", Rejected, rejected)
    _, _, fold = rejected_section(RunFacts([StageOutput("dedup", folder, {})]))
    assert isinstance(fold, Fold)
    assert fold.summary == "dedup: 3 rejected of 4 rows (75.0 %)"
    (table,) = fold.blocks
    assert isinstance(table, Table)
    assert table.rows == (
        ("same query as 12345678", "2", "prompt 0"),
        ("empty", "1", "prompt 2"),
    )


def test_a_run_that_rejected_nothing_has_no_such_section():
    assert rejected_section(RunFacts([])) == []
