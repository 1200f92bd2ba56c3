"""The judge stage; and a few graded answers, each with every check of the judge, chosen by rule."""

import re
from pathlib import Path

import pytest
from shared_data import DATA, shared_rows

from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.judging import JudgeSettings
from klear.eval.benchmarks.grades import GRADED, TAIL_CHARS, Grade, Graded, compare, read_graded
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem, Sample, Score, StdinCase, TestSuite
from klear.eval.records.tables import read_table, write_table
from klear.tasks.answers.judge import judge
from klear.tasks.report import grading
from klear.tasks.report.grading import ANSWERS, CHECKS, grade_some
from klear.tasks.report.report import report_page
from klear.tasks.store.store import SCRATCH, Artifact
from klear.training.engines.generate import Journal, journal_path
from klear.training.engines.recorded import Recording, recordings
from tests.eval.evaluations_by_hand import scored
from tests.tasks.manifests_by_hand import folder_with

CASES = tuple(StdinCase(input=str(n), output=str(2 * n)) for n in range(CHECKS + 3))
SUITE = TestSuite(kind="stdin", cases=CASES)
TWICE = Problem(domain="code", prompt="Print twice the number.", tests=SUITE)
ALWAYS_TWO = "<think>\n</think>\n```python\nprint(2)\n```"
ONLY_THE_SECOND_IS_RIGHT = ["AC" if n == 1 else "WA" for n in range(CHECKS)]


def evaluated(folder: Path, problems: list[Problem], text: str, right: set[int]) -> Path:
    samples = [Sample(problem_id=p.id, index=0, model="m", text=text) for p in problems]
    scores = [scored(p.id, i in right) for i, p in enumerate(problems)]
    folder_with(folder, problems=problems, samples=samples, scores=scores)
    return folder / "problems.parquet"


def test_few_are_chosen_from_the_lowest_to_the_highest_reward(tmp_path):
    problems = [Problem(domain="math", prompt=f"{n}?", answer="2") for n in range(30)]
    table = evaluated(tmp_path, problems, "\\boxed{2}", set(range(15)))
    with Journal(journal_path(tmp_path)) as journal:
        for p in reversed(problems):
            journal.append(Sample(problem_id=p.id, index=0, model="m", text=""))
    graded = grade_some(tmp_path, table, JudgeSettings())
    assert {g.problem_id: g.place for g in graded}.items() <= {
        p.id: n for n, p in enumerate(reversed(problems), 1)
    }.items()
    assert [g.verdict for g in graded] == ["WA"] * (ANSWERS // 2) + ["AC"] * (ANSWERS // 2)
    assert graded[0].answer == "2"
    assert graded[0].checks[0].expected == "2"


def test_what_was_never_run_or_is_no_program_has_its_grade_and_no_checks(tmp_path, monkeypatch):
    unsafe = JudgeSettings(sandbox="none")
    table = evaluated(tmp_path, [TWICE], ALWAYS_TWO, set())
    monkeypatch.setattr(grading, "SECONDS", 0.0)
    (late,) = grade_some(tmp_path, table, unsafe)
    monkeypatch.undo()
    table = evaluated(tmp_path, [TWICE], "<think>\n</think> no program", set())
    (empty,) = grade_some(tmp_path, table, unsafe)
    for graded in (late, empty):
        assert (graded.verdict, graded.checks, graded.checks_in_all) == ("WA", (), len(CASES))
    assert empty.answer is None


def test_an_answer_with_any_line_separator_is_read_back(tmp_path):
    path = tmp_path / "graded.jsonl"
    assert read_graded(path) == []
    text = "a\u2028b\x85c\u2029d\x0be\x1cf"  # str.splitlines cuts at every one of them
    graded = [
        Graded(problem_id="p", index=i, prompt=text, text=text, answer=None, verdict="IE",
               reward=None, correct=None, pass_rate=None)
        for i in range(2)
    ]  # fmt: skip
    path.write_bytes("".join(g.model_dump_json() + "\n" for g in graded).encode())
    assert read_graded(path) == graded


def test_a_program_is_judged_once_a_test_and_the_report_shows_what_each_said(tmp_path):
    folder = tmp_path / "evaluate_sft"
    table = evaluated(folder, [TWICE], ALWAYS_TWO, set())
    (folder / "results.json").write_text("[]")
    graded = grade_some(folder, table, JudgeSettings(sandbox="none"))
    (folder / GRADED).parent.mkdir()
    (folder / GRADED).write_text("".join(g.model_dump_json() + "\n" for g in graded))
    assert [c.verdict for c in graded[0].checks] == ONLY_THE_SECOND_IS_RIGHT
    assert (graded[0].checks[1].input, graded[0].checks[1].expected) == ("1", "2")
    text = report_page([Artifact.of_folder(folder, folder.name)], "tiny").body
    assert "<summary>SFT: WA, reward 0.0</summary>" in text
    verdicts = re.findall(rf"^\| test \d+ of {len(CASES)} \| (\w+)", text, flags=re.M)
    assert verdicts == ONLY_THE_SECOND_IS_RIGHT
    assert f"_The first {CHECKS} tests; {len(CASES) - CHECKS} more._" in text


def answered(folder: Path, texts: list[str]) -> Artifact:
    """Answers to two problems in turn; one without a text is one that the engine failed to give."""
    problems = [Problem(id=i, domain="math", prompt=i, answer="4") for i in ("a", "b")]
    samples = [
        Sample(problem_id="ab"[i % 2], index=i // 2, model="m", text=text,
               finish_reason="stop" if text else "error")
        for i, text in enumerate(texts)
    ]  # fmt: skip
    return folder_with(folder, kept=problems, samples=samples)


def judged_stage(out: Path, artifact: Artifact):
    out.mkdir(exist_ok=True)
    metrics = judge.body(out, artifact, artifact, settings=JudgeSettings())
    return metrics, list(read_table(out / "scores.parquet", Score))


def test_scores_are_in_order_and_what_nobody_answered_is_unscored(tmp_path, scripted):
    artifact = answered(tmp_path / "in", ["", "right", "", "", "no", ""])
    metrics, scores = judged_stage(tmp_path / "out", artifact)
    assert [s.verdict for s in scores] == ["IE", "AC", "IE", "IE", "WA", "IE"]
    assert [(s.problem_id, s.index) for s in scores] == [("ab"[i % 2], i // 2) for i in range(6)]
    assert (metrics["unscored"], metrics["correct_share"]) == (4.0, 0.5)
    # A measurement is a metric, and no part of the table: equal verdicts give equal bytes.
    assert metrics["judge_seconds"] == 2 * 0.25
    assert {s.seconds for s in scores} == {0.0}
    stranger = Sample(problem_id="z", index=0, model="m", text="right")
    write_table(artifact.folder / "samples.parquet", Sample, [stranger])
    with pytest.raises(ValueError, match="a sample answers z, which is no problem here"):
        judged_stage(tmp_path / "unknown", artifact)


def test_a_killed_stage_judges_only_what_is_left(tmp_path, scripted):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        judged_stage(out, answered(tmp_path / "in", ["right", "one", "two", "kill", "four"]))
    assert scripted.judged == ["right", "one", "two"]
    journal = out / SCRATCH / "scores.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])  # the kill tore the last line
    artifact = answered(tmp_path / "in", ["right", "one", "two", "three", "four"])
    _, resumed = judged_stage(out, artifact)
    assert scripted.judged == ["two", "three", "four"]
    _, at_once = judged_stage(tmp_path / "fresh", artifact)
    assert resumed == at_once


P = Problem(domain="math", prompt="What is 1 + 1?", answer="2")


def grade(index: int, correct: bool) -> Grade:
    return Grade(problem_id=P.id, index=index, model="teacher", correct=correct)


def sample(index: int, text: str = "answer") -> Sample:
    return Sample(problem_id=P.id, index=index, model="teacher", text=text)


def test_every_cell_of_the_confusion_table_is_counted():
    ours = [True, True, True, False, False, False, None, True]
    published = [True, True, False, False, False, True, True]
    agreement = compare(
        [P],
        [sample(i) for i in range(8)],
        [scored(P.id, c, i) for i, c in enumerate(ours)],
        [grade(i, c) for i, c in enumerate(published)] + [grade(9, False)],
    )
    assert (agreement.both_right, agreement.both_wrong) == (2, 2)
    assert (agreement.only_ours, agreement.only_published) == (1, 1)
    # Number 6 has no verdict and number 9 no answer of ours; number 7 nobody has graded.
    assert (agreement.compared, agreement.unscored, agreement.ungraded) == (6, 2, 1)
    assert agreement.share == pytest.approx(4 / 6)
    low, high = agreement.interval
    assert 0 < low < 4 / 6 < high < 1
    none = compare([], [], [scored(P.id, True, 0)], [])
    assert (none.share, none.interval) == (None, (0.0, 1.0))


def test_a_disagreement_carries_what_a_reader_needs_to_settle_it():
    agreement = compare(
        [P], [sample(0, "x" * 1000 + "the end")], [scored(P.id, False, 0)], [grade(0, True)]
    )
    (row,) = agreement.disagreements
    assert (row.gold, row.prompt) == ("2", P.prompt)
    assert (row.score, row.grade) == (scored(P.id, False, 0), grade(0, True))
    assert len(row.tail) == TAIL_CHARS
    assert row.tail.endswith("the end")


ENGINE = EngineSettings(
    kind="recorded", files=(f"{DATA}/skythought_cot/aime24.jsonl.gz",), grade_field="correct",
    think_tags=("<|begin_of_thought|>", "<|end_of_thought|>"),
    solution_tags=("<|begin_of_solution|>", "<|end_of_solution|>"),
)  # fmt: skip


def test_every_model_gets_its_published_score_on_aime24():
    """Of 990 graded answers of 32 fine-tunes two grades of truncated answers are not ours (the
    report of `replay` shows both), so all scores together may be off by two answers."""
    rows = shared_rows("skythought_cot/aime24")
    from_rows = (Problem(domain="math", prompt=r["question"], answer=str(r["gt"])) for r in rows)
    problems = {p.id: p for p in from_rows}
    graded = [r for r in recordings(ENGINE) if isinstance(r, Recording)]
    samples, grades = [r.sample for r in graded], [r.grade for r in graded if r.grade]
    assert {s.model for s in samples} == {row["model"] for row in rows}
    with Judge() as judge:
        judged = ((problems[s.problem_id], s.text, s.index) for s in samples)
        both = compare(problems.values(), samples, judge.judge_many(judged), grades)
    assert (both.compared, both.unscored) == (len(rows), 0)
    assert both.only_ours + both.only_published <= 2
