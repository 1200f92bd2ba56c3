"""The report: what it says, what it leaves out, and that no model text can break it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.evaluate_stage import BenchmarkProtocol
from eval.agreement import Grade
from eval.benchmarks import BenchmarkResult, Statement, score_benchmark
from eval.page import Block, Cell, Fold, Notice, Page, Paragraph, Table, figures_of
from eval.page_html import to_html
from eval.plots import Series
from eval.records import Problem, Rejected, Sample, Score
from eval.report import build_page
from eval.report_training import duration
from eval.run_facts import RunFacts, StageOutput, reason_kind
from eval.run_readings import answers, overlaps, rollouts
from eval.tables import write_table

EVIL = (
    "</pre></details><script>alert(1)</script>\n```\n# heading | cell |\n````text\n"
    "<img src=x onerror=alert(1)> [link](javascript:alert(1)) **bold** &amp; $x$\r\n- item"
)
STATEMENT = Statement(
    checkpoint="c0ffee", engine="transformers 5", temperature=0.6, top_p=0.95, max_tokens=64,
    yarn_factor=None, template="t", grader_version=1, sandbox="bubblewrap", seed=1, resamples=50,
)  # fmt: skip


def problem(name: str, source: str = "aime24") -> Problem:
    return Problem(domain="math", prompt=name, answer="1", source=source)


def score(p: Problem, index: int, correct: bool | None) -> Score:
    return Score(
        problem_id=p.id,
        index=index,
        reward=None if correct is None else 2.0 * correct - 1,
        correct=correct,
        pass_rate=None if correct is None else float(correct),
        verdict="IE" if correct is None else "AC" if correct else "WA",
        reason=EVIL,
    )


def evaluation(root: Path, checkpoint: str, right: int, *, benchmark: str = "aime24",
               unscored: int = 0, asked: int = 10) -> StageOutput:  # fmt: skip
    """A checkpoint that solves `right` of `asked` problems, one sample each."""
    folder = root / f"evaluate_{checkpoint}"
    folder.mkdir()
    problems = [problem(f"question {i}", benchmark) for i in range(asked)]
    scores = [
        score(p, 0, None if i >= asked - unscored else i < right) for i, p in enumerate(problems)
    ]
    samples = [Sample(problem_id=p.id, index=0, model="m", text=EVIL) for p in problems]
    result = score_benchmark(
        BenchmarkProtocol(name=benchmark, k=1), problems,
        {(s.problem_id, 0): s for s in samples}, {(s.problem_id, 0): s for s in scores}, STATEMENT,
    )  # fmt: skip
    write_table(folder / "problems.parquet", Problem, problems)
    write_table(folder / "samples.parquet", Sample, samples)
    write_table(folder / "scores.parquet", Score, scores)
    (folder / "results.json").write_text(f"[{result.model_dump_json()}]")
    return StageOutput(folder.name, folder, {})


def page_of(*outputs: StageOutput, profile: str = "tiny") -> Page:
    return build_page(RunFacts(outputs), profile, to_read=4)


def flat(blocks: tuple[Block, ...]) -> list[Block]:
    found: list[Block] = []
    for b in blocks:
        found += [b, *flat(b.blocks)] if isinstance(b, Fold) else [b]
    return found


def texts(page: Page) -> str:
    return "\n".join(b.text for b in flat(page.blocks) if isinstance(b, Paragraph | Notice))


@pytest.mark.parametrize("profile", ["tiny", "replay", "single_gpu", ""])
def test_figures_of_any_profile_but_the_papers_say_that_they_are_not_comparable(profile):
    (notice,) = [b for b in page_of(profile=profile).blocks if isinstance(b, Notice)]
    assert notice.title.endswith("-profile figures: not comparable to the paper")
    assert notice.title.startswith(profile or "unlabelled")


def test_the_paper_profile_carries_no_such_notice():
    assert not [b for b in page_of(profile="paper").blocks if isinstance(b, Notice)]


def score_rows(page: Page) -> list[tuple[str | Cell, ...]]:
    return next(list(b.rows) for b in page.blocks
                if isinstance(b, Table) and b.columns[0] == "Checkpoint")  # fmt: skip


def test_checkpoints_come_in_training_order_with_the_change_from_the_one_before(tmp_path):
    outputs = [evaluation(tmp_path, c, n) for c, n in (("rl_math", 7), ("base", 0), ("sft", 5))]
    rows = score_rows(page_of(*outputs))
    assert [row[0] for row in rows] == ["base", "SFT", "math RL"]
    cells = [row[1] for row in rows]
    assert [(c.text, c.change, c.tone) for c in cells if isinstance(c, Cell)] == [
        ("0.0", "", ""), ("50.0", "+50.0", "good"), ("70.0", "+20.0", "good")]  # fmt: skip


def test_a_score_that_fell_is_shown_as_fallen(tmp_path):
    outputs = [evaluation(tmp_path, c, n) for c, n in (("sft", 5), ("rl_math", 3))]
    cell = score_rows(page_of(*outputs))[1][1]
    assert isinstance(cell, Cell)
    assert (cell.change, cell.tone) == ("−20.0", "bad")


def test_a_score_near_zero_on_a_published_benchmark_is_said_in_words(tmp_path):
    base = StageOutput("base", tmp_path, {"parameters": 1_050_000.0})
    text = texts(page_of(base, evaluation(tmp_path, "sft", 0)))
    assert "1.1 million parameters cannot solve AIME 2024" in text
    assert "up to 26 % of problems" in text  # 1 - 0.05 ** (1 / 10)


def test_a_zero_on_a_generated_benchmark_needs_no_excuse(tmp_path):
    assert "cannot solve" not in texts(page_of(evaluation(tmp_path, "sft", 0, benchmark="make")))


def test_unscored_answers_are_counted_in_words(tmp_path):
    text = texts(page_of(evaluation(tmp_path, "sft", 3, unscored=2)))
    assert "2 of 10 answers could not be scored" in text


def test_a_benchmark_with_nothing_scored_is_unscored_not_zero(tmp_path):
    cell = score_rows(page_of(evaluation(tmp_path, "sft", 0, unscored=10)))[0][1]
    assert isinstance(cell, Cell)
    assert cell.text == "unscored"


def test_scores_judged_without_isolation_are_marked(tmp_path):
    output = evaluation(tmp_path, "sft", 3)
    assert "without isolation" not in texts(page_of(output))
    results = output.folder / "results.json"
    results.write_text(results.read_text().replace("bubblewrap", "none"))
    notices = [b.title for b in page_of(output).blocks if isinstance(b, Notice)]
    assert "Judged without isolation" in notices


def test_every_field_of_a_result_and_its_statement_is_printed(tmp_path):
    page = page_of(evaluation(tmp_path, "sft", 4))
    tables = [b for b in page.blocks if isinstance(b, Table)]
    named = {c for t in tables for c in t.columns} | {row[0] for t in tables for row in t.rows}
    fields = {*Statement.model_fields, *BenchmarkResult.model_fields} - {"name", "statement"}
    assert {name.replace("_", " ") for name in fields} <= named


def test_the_funnel_adds_up_and_groups_reasons_by_kind(tmp_path):
    write_table(tmp_path / "kept.parquet", Problem, [problem("a"), problem("b")])
    reasons = [f"same prompt as {i:016x}" for i in range(3)] + ["empty prompt"]
    rejected = [Rejected(id=str(i), reason=r, row="{}") for i, r in enumerate(reasons)]
    write_table(tmp_path / "rejected.parquet", Rejected, rejected)
    page = page_of(StageOutput("dedup", tmp_path, {}))
    (row,) = next(b.rows for b in page.blocks if isinstance(b, Table) and "Rows in" in b.columns)
    assert row == ("dedup", "6", "2", "4", "same prompt as … (3); empty prompt (1)")


def test_problems_that_a_teacher_left_unanswered_are_in_the_table_with_their_reason(tmp_path):
    sample = Sample(problem_id="p", index=0, model="m", text="t")
    write_table(tmp_path / "samples.parquet", Sample, [sample] * 5)
    rejected = Rejected(id="q", reason="the endpoint gave no answer", row="{}")
    write_table(tmp_path / "rejected.parquet", Rejected, [rejected])
    page = page_of(StageOutput("distill", tmp_path, {}))
    (row,) = next(b.rows for b in page.blocks if isinstance(b, Table) and "Rows in" in b.columns)
    assert row == ("distill", "–", "5", "1", "the endpoint gave no answer (1)")


def test_a_reason_keeps_its_words_and_loses_its_numbers():
    reason = "'make 12 from 3' is a 9-gram of aime24 item 00deadbeef00cafe (coverage 0.25)"
    assert reason_kind(reason) == "… is a 9-gram of aime24 item … (coverage …)"


def test_both_overlap_rules_are_counted_by_row_and_examples_span_the_range(tmp_path):
    coverages = [("a", 0.1), ("a", 0.9), ("b", 0.6), ("c", 0.3), ("d", 0.05)]
    same = {"benchmark": "aime24", "ngram": "a b c", "row": EVIL, "item": "x"}
    rows = [{"row_id": i, "coverage": c, **same} for i, c in coverages]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "hits.parquet")
    found = overlaps(RunFacts([StageOutput("decontaminate", tmp_path, {})]))
    assert found is not None
    assert found.any_ngram == 4
    assert found.by_coverage == ((0.25, 3), (0.5, 2), (0.8, 1))
    assert [e.coverage for e in found.examples] == [0.9, 0.3, 0.05]


def test_disagreements_with_published_grades_are_all_there(tmp_path):
    p = [problem(f"q{i}") for i in range(6)]
    for name in ("distill", "judge", "decontaminate"):
        (tmp_path / name).mkdir()
    write_table(tmp_path / "decontaminate/kept.parquet", Problem, p)
    samples = [Sample(problem_id=x.id, index=0, model="R1", text=EVIL) for x in p]
    write_table(tmp_path / "distill/samples.parquet", Sample, samples)
    write_table(
        tmp_path / "judge/scores.parquet", Score, [score(x, 0, i < 4) for i, x in enumerate(p)]
    )
    grades = [Grade(problem_id=x.id, index=0, model="R1", correct=i < 2) for i, x in enumerate(p)]
    write_table(tmp_path / "distill/grades.parquet", Grade, grades)
    page = page_of(
        *(StageOutput(n, tmp_path / n, {}) for n in ("distill", "judge", "decontaminate"))
    )
    (fold,) = [b for b in page.blocks if isinstance(b, Fold)]
    assert len(fold.blocks) == 2
    assert "published wrong, ours right (AC)" in str(fold.blocks[0])


def test_rollouts_come_from_the_first_and_the_last_step_and_missing_columns_are_no_error(tmp_path):
    rows = [
        {"step": s, "problem_id": "p", "text": f"{s}/{r}", "reward": r}
        for s in (1, 2, 3)
        for r in (-1.0, 0.0, 1.0)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rollouts.parquet")
    facts = RunFacts([StageOutput("rl_math", tmp_path, {})])
    assert [r.answer for r in rollouts(facts, 4)] == ["1/-1.0", "1/1.0", "3/-1.0", "3/1.0"]
    bare = [{"problem_id": "p", "text": "only text"}]
    pq.write_table(pa.Table.from_pylist(bare), tmp_path / "rollouts.parquet")
    assert [r.answer for r in rollouts(facts, 4)] == ["only text"]


def test_answers_to_read_are_right_and_wrong_ones(tmp_path):
    found = answers(RunFacts([evaluation(tmp_path, "sft", 5)]), 4)
    assert [("AC" in a.title, "WA" in a.title) for a in found] == [(1, 0)] * 2 + [(0, 1)] * 2
    all_wrong = answers(RunFacts([evaluation(tmp_path, "base", 0)]), 4)
    assert len(all_wrong) == 4


def test_a_resumed_steps_later_line_replaces_the_earlier_one(tmp_path):
    (tmp_path / "logs").mkdir()
    lines = [(1, 3.0), (2, 2.5), (2, 2.0)]
    (tmp_path / "logs/metrics.jsonl").write_text(
        "".join(json.dumps({"step": s, "time": 0, "metrics": {"loss": v}}) + "\n" for s, v in lines)
    )
    facts = RunFacts([StageOutput("sft", tmp_path, {})])
    assert facts.curves("sft") == {"loss": Series("loss", (1, 2), (3.0, 2.0))}
    assert [f.name for f in figures_of(build_page(facts, "tiny", 0).blocks)] == ["sft_loss"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (41.2, "41 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


def test_a_run_that_left_nothing_still_makes_a_page():
    page = page_of()
    assert "No checkpoint was evaluated" in texts(page)
    assert "nothing to report" in texts(page)
    assert to_html(page).startswith("<!doctype html>")
