"""A few graded answers, each with every check of the judge, chosen by rule."""

import re
from pathlib import Path

from klear.configs.settings.judging import JudgeSettings
from klear.eval.judge.grades import GRADED, Graded, read_graded
from klear.eval.records import Problem, Sample, StdinCase, TestSuite
from klear.tasks.report import grading
from klear.tasks.report.grading import ANSWERS, CHECKS, grade_some
from klear.tasks.report.report import report_page
from klear.tasks.store.store import Artifact
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
    asked = evaluated(tmp_path, problems, "\\boxed{2}", set(range(15)))
    graded = grade_some(tmp_path, [asked], JudgeSettings())
    assert [g.verdict for g in graded] == ["WA"] * (ANSWERS // 2) + ["AC"] * (ANSWERS // 2)
    assert graded[0].answer == "2"
    assert graded[0].checks[0].expected == "2"


def test_what_was_never_run_or_cannot_be_has_its_grade_and_no_checks(tmp_path, monkeypatch):
    unsafe = JudgeSettings(sandbox="none")
    asked = evaluated(tmp_path, [TWICE], ALWAYS_TWO, set())
    (gone,) = grade_some(tmp_path, [], unsafe)  # the problem is
    monkeypatch.setattr(grading, "SECONDS", 0.0)
    (late,) = grade_some(tmp_path, [asked], unsafe)
    monkeypatch.undo()
    asked = evaluated(tmp_path, [TWICE], "<think>\n</think> no program", set())
    (empty,) = grade_some(tmp_path, [asked], unsafe)
    assert [(g.verdict, g.checks, g.checks_in_all) for g in (gone, late, empty)] == [
        ("WA", (), 0), ("WA", (), len(CASES)), ("WA", (), len(CASES))
    ]  # fmt: skip
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
    asked = evaluated(folder, [TWICE], ALWAYS_TWO, set())
    (folder / "results.json").write_text("[]")
    graded = grade_some(folder, [asked], JudgeSettings(sandbox="none"))
    (folder / GRADED).parent.mkdir()
    (folder / GRADED).write_text("".join(g.model_dump_json() + "\n" for g in graded))
    assert [c.verdict for c in graded[0].checks] == ONLY_THE_SECOND_IS_RIGHT
    assert (graded[0].checks[1].input, graded[0].checks[1].expected) == ("1", "2")
    text = report_page([Artifact.of_folder(folder, folder.name)], "tiny").body
    assert "<summary>SFT: WA, reward 0.0</summary>" in text
    verdicts = re.findall(rf"^\| test \d+ of {len(CASES)} \| (\w+)", text, flags=re.M)
    assert verdicts == ONLY_THE_SECOND_IS_RIGHT
    assert f"_The first {CHECKS} tests; {len(CASES) - CHECKS} more._" in text
