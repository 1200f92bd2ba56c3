"""What RL is trained on, how hard a problem is, and what a prompt without gold goes through."""

from math import comb
from pathlib import Path

import pytest
from pydantic import ValidationError

from klear.configs.settings.data import (
    DifficultySettings,
    FilterRLSettings,
    FilterTestsSettings,
    SelectSettings,
)
from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.eval.judge.judge import Judge
from klear.eval.records import (
    NO_GOLD,
    AssertCase,
    CallCase,
    CheckerCase,
    Example,
    Problem,
    Sample,
    Score,
    StdinCase,
    TestSuite,
)
from klear.eval.records.tables import read_table, write_table
from klear.eval.rows.golds import chance_of_guessing, tail, unjudgeable
from klear.tasks.answers.difficulty import Difficulty, difficulty
from klear.tasks.answers.filter_rl import filter_rl
from klear.tasks.answers.judge import judge
from klear.tasks.answers.select import select
from klear.tasks.data.filter_tests import distinct_cases, filter_tests
from klear.tasks.store.store import Artifact
from tests.eval.evaluations_by_hand import math_problem, scored
from tests.tasks.manifests_by_hand import folder_with, kept_in, rejected_in

ONE_WORKER = JudgeSettings(runtime=JudgeRuntime(workers=1))


def score(id_: str, index: int, correct: bool | None) -> Score:
    """A wrong answer passes 90 % of its tests: what counts is whether an answer is right."""
    nearly = {"reward": 0.9, "pass_rate": 0.9} if correct is False else {}
    return scored(id_, correct, index, **nearly)


def rated(folder: Path, marks: dict[str, list[bool | None]], samples: int | None = None, **chosen):
    problems = [math_problem("What?", f"source_{i}", id=i) for i in marks]
    scores = [score(i, k, mark) for i, row in marks.items() for k, mark in enumerate(row)]
    answers = [Sample(problem_id=s.problem_id, index=s.index, model="m", text="") for s in scores]
    data = folder_with(folder, kept=problems, scores=scores, samples=answers[:samples])
    settings = DifficultySettings(**chosen)
    metrics = difficulty.body(folder / "out", data, data, data, settings=settings)
    rows = read_table(folder / "out" / "difficulty.parquet", Difficulty)
    return metrics, [(r.label, r.pass_rate) for r in rows]


def test_easy_is_strictly_above_the_threshold_and_no_rating_is_no_label(tmp_path: Path):
    marks = {"a": [True, False], "b": [True, True, False], "c": [True, None], "d": [None], "e": []}
    metrics, labels = rated(tmp_path, marks)
    assert labels == [
        ("hard", 0.5), ("easy", 2 / 3), ("easy", 1.0), ("unrated", None), ("unrated", None),
    ]  # fmt: skip
    assert (metrics["hard"], metrics["easy"], metrics["unrated"]) == (1.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="1 samples but 2 scores"):
        rated(tmp_path, {"a": [True, False]}, samples=1)


def test_a_source_that_is_known_to_be_easy_or_hard_decides_whatever_the_pass_rate(tmp_path: Path):
    marks = {"a": [True, False], "b": [True, True], "c": [None], "d": [True]}
    sources = {"easy_sources": ("source_a", "source_c"), "hard_sources": ("source_b",)}
    metrics, labels = rated(tmp_path, marks, rater="source", **sources)
    assert labels == [("easy", 0.5), ("hard", 1.0), ("easy", None), ("unrated", 1.0)]
    assert (metrics["easy"], metrics["hard"], metrics["unrated"]) == (2.0, 1.0, 1.0)
    for settings in ({"rater": "source"}, {"rater": "teacher", "hard_sources": ("a",)}):
        with pytest.raises(ValidationError, match="rater source goes together with easy_sources"):
            DifficultySettings(**settings)
    with pytest.raises(ValidationError, match="'a' is named both easy and hard"):
        DifficultySettings(rater="source", easy_sources=("a",), hard_sources=("b", "a"))


def stdin(*pairs: tuple[str, str]) -> TestSuite:
    return TestSuite(kind="stdin", cases=tuple(StdinCase(input=i, output=o) for i, o in pairs))


def coded(name: str, tests: int, repeats: int = 0, source: str = "s") -> Problem:
    pairs = [(str(i), str(i)) for i in range(tests)] + [("0", "0")] * repeats
    return Problem(domain="code", prompt=name, tests=stdin(*pairs), source=source)


def with_tests(folder: Path, rows: list[Problem], **chosen):
    data, settings = folder_with(folder, kept=rows), FilterTestsSettings(**chosen)
    return filter_tests.body(folder / "out", data, settings=settings)


def test_repeated_tests_do_not_count_and_rows_of_other_sources_are_counted_alone(tmp_path: Path):
    rows, math = [coded("enough", 16, 3, "mine"), coded("few", 15, 3, "mine")], math_problem("1+1")
    metrics = with_tests(tmp_path, [*rows, coded("b", 1, source="theirs"), math], sources=("mine",))
    (kept,), (rejected,) = kept_in(tmp_path / "out"), rejected_in(tmp_path / "out")
    assert (kept.prompt, kept.tests) == ("enough", coded("enough", 16).tests)
    assert rejected.reason == "15 distinct tests, fewer than 16"
    assert Problem.model_validate_json(rejected.row) == rows[1]
    assert (metrics["repeated_tests"], metrics["other_sources"]) == (6.0, 2.0)


def test_every_kind_of_test_can_repeat_and_outputs_and_types_make_another_one():
    suites = [
        TestSuite(kind="call", fn_name="f", cases=(CallCase(args=([1],), output=[True]),) * 2),
        TestSuite(kind="assert", cases=(AssertCase(code="assert f(1)\n"),) * 2),
        TestSuite(kind="checker", cases=(CheckerCase(input="1", output="", checker="ok"),) * 2),
    ]
    assert [len(distinct_cases(s).cases) for s in suites] == [1, 1, 1]
    tests = stdin(("1 2\n", "3\n"), ("1 2", "3"), ("1  2", "3"), ("1 2", "4"))
    assert distinct_cases(tests) == stdin(("1 2\n", "3\n"), ("1  2", "3"), ("1 2", "4"))
    cases = (CallCase(args=(1,), output=1), CallCase(args=(True,), output=1))
    tests = TestSuite(kind="call", fn_name="f", cases=cases)
    assert distinct_cases(tests) == tests


def sampled(folder: Path, rows: dict[str, tuple[int, int, int]], **chosen):
    """By (right, wrong, unscored) answers: metrics, ids kept, and reasons by id."""
    problems = [
        Problem(id=i, domain="code", prompt=i, tests=stdin(("1", "1")))
        if i.startswith("code")
        else math_problem(i, id=i)
        for i in rows
    ]
    marks = {i: [True] * n[0] + [False] * n[1] + [None] * n[2] for i, n in rows.items()}
    scores = [score(i, k, mark) for i, row in marks.items() for k, mark in enumerate(row)]
    data = folder_with(folder, kept=problems, scores=scores)
    out = folder / "out"
    metrics = filter_rl.body(out, data, data, settings=FilterRLSettings(**chosen))
    return metrics, [p.id for p in kept_in(out)], {r.id: r.reason for r in rejected_in(out)}


def test_nine_of_sixteen_answers_that_pass_is_a_majority_and_eight_is_not(tmp_path: Path):
    names = ("math8", "math9", "code8", "code9")
    rows = {name: (int(name[-1]), 16 - int(name[-1]), 0) for name in names}
    metrics, kept, rejected = sampled(tmp_path, rows)
    assert kept == ["math9", "code9"]
    reason = "8 of 16 samples pass; needs more than 0.5"
    assert rejected == {"math8": reason, "code8": reason}
    assert metrics["rejected_too_few_passed"] == 2.0
    # The inclusive reading of Figure 4 changes code alone.
    assert sampled(tmp_path, rows, code_inclusive=True)[1] == ["math9", "code8", "code9"]


def test_unscored_answers_leave_the_share_and_too_few_scored_ones_prove_nothing(tmp_path: Path):
    rows = {"math5": (5, 4, 7), "math7": (7, 0, 9), "code": (0, 0, 0)}  # as wrong ones: 5 of 16
    metrics, kept, rejected = sampled(tmp_path, rows)
    assert kept == ["math5"]
    assert rejected == {"math7": "only 7 of 16 samples were scored", "code": "no samples"}
    assert metrics["rejected_too_few_scored"] == metrics["rejected_unsampled"] == 1.0


WITHOUT_GOLD = [
    Problem(domain="math", prompt="why?", judgeable=False, source="none"),
    Problem(domain="code", prompt="sort", judgeable=False, source="none"),
]
MIXED = [Problem(domain="math", prompt="1+1?", answer="2", source="gold"), *WITHOUT_GOLD]
TEXT = "<think>hm</think>\n\\boxed{2}"


def test_a_problem_is_either_without_gold_or_with_it():
    with pytest.raises(ValidationError, match="judgeable is false, yet"):
        Problem(domain="math", prompt="p", judgeable=False, answer="2")
    for domain in ("math", "code"):
        with pytest.raises(ValidationError, match="needs"):
            Problem(domain=domain, prompt="p")


def test_every_answer_to_it_is_unscored_with_the_reason_and_never_zero(tmp_path):
    texts = (TEXT, "no answer at all", "")
    with Judge(ONE_WORKER) as one:
        scores = [one.judge(problem, text) for problem in WITHOUT_GOLD for text in texts]
    for unscored in scores:
        assert (unscored.verdict, unscored.reason) == ("IE", NO_GOLD)
        assert (unscored.reward, unscored.correct, unscored.pass_rate) == (None, None, None)
    write_table(tmp_path / "s.parquet", Score, scores)
    assert list(read_table(tmp_path / "s.parquet", Score)) == scores


@pytest.fixture
def judged(tmp_path: Path) -> Artifact:
    """Problems with one answer each, its score and difficulty, by the stages themselves."""
    samples = [Sample(problem_id=p.id, index=0, model="m", text=TEXT) for p in MIXED]
    data = folder_with(tmp_path, kept=MIXED, samples=samples)
    metrics = judge.body(tmp_path, data, data, settings=ONE_WORKER)
    assert (metrics["unscored"], metrics["not_judgeable"], metrics["correct_share"]) == (2, 2, 1)
    data = Artifact.of_folder(tmp_path)
    labels = difficulty.body(tmp_path, data, data, data, settings=DifficultySettings())
    assert (labels["easy"], labels["unrated"]) == (1, 2)
    return Artifact.of_folder(tmp_path)


def test_the_mixed_set_keeps_it_and_what_asks_for_gold_says_why_not(judged):
    """Before RL samples it, and after, too."""
    out, every = judged.folder / "out", ["gold", "none", "none"]
    for kept, chosen in ((every, {}), (["gold"], {"correctness": "only_true"}),
                         (["gold"], {"difficulty": "easy"})):  # fmt: skip
        settings = SelectSettings.model_validate(chosen)
        metrics = select.body(out, judged, judged, judged, judged, settings=settings, seed=0)
        examples, lost = kept_in(out, Example), 3 - len(kept)
        assert [e.source for e in examples] == kept
        assert [e.correct for e in examples if e.source == "none"] == [None] * kept.count("none")
        assert [r.reason for r in rejected_in(out)] == ["not judgeable"] * lost
        assert metrics.get("rejected/not judgeable", 0) == lost
    metrics = filter_tests.body(out, judged, settings=FilterTestsSettings(min_tests=1))
    assert (metrics["kept"], metrics["not_judgeable"]) == (1, 2)
    assert [r.reason for r in rejected_in(out)] == [NO_GOLD, NO_GOLD]
    metrics = filter_rl.body(out, judged, judged, settings=FilterRLSettings())
    assert (metrics["kept"], metrics["rejected_not_judgeable"]) == (1, 2)
    assert [r.reason for r in rejected_in(out)] == [NO_GOLD, NO_GOLD]


@pytest.mark.parametrize(
    ("gold", "prompt", "why"),
    [
        ("proof", "Prove that n is odd.", "no answer"),
        ("See the solution above.", "Find n.", "no answer"),
        ("The set is linearly independent because no vector repeats.", "Is it?", "a sentence"),
        (r"\frac{S_{n}}{2}", "What is half of the sum?", "depends on S_n"),
        (r"\frac{S_{n}}{2}", "Let $S_n$ be the sum. What is half of it?", ""),
        ("no real solutions exist", "Solve it.", ""),
        (r"\text{all real numbers except } 2", "Where is it defined?", ""),
        (r"S_{n}=n^2", "What is the sum?", ""),  # n^2 answers it
        ("The steady state current is 2 amps.", "Which current?", ""),  # 2 answers it
    ],
)
def test_a_gold_that_nobody_can_match_says_why(gold: str, prompt: str, why: str):
    reason = unjudgeable(Problem(domain="math", prompt=prompt, answer=gold))
    assert why in reason if why else not reason


@pytest.mark.parametrize(
    ("gold", "prompt", "chance"),
    [
        ("Yes", "Is it?", 1 / 2),
        (r"\text{False}", "True or false?", 1 / 2),
        ("(B)", "Which? (A) 1 (B) 2 (C) 3 (D) 4 (E) 5", 1 / 5),
        ("C", "Which kind is it?", 1 / 4),
        ("12", "How many?", 0.0),
        ("no solution", "Solve it.", 0.0),
    ],
)
def test_what_guessing_matches_is_known_by_its_gold(gold: str, prompt: str, chance: float):
    problem = Problem(domain="math", prompt=prompt, answer=gold)
    assert chance_of_guessing(problem) == pytest.approx(chance)


def test_golds_that_nobody_matches_and_coins_that_match_them_are_counted_apart(tmp_path: Path):
    """A coin passes nine of sixteen in two of five yes/no problems, thirteen in one of a hundred:
    P(X ≥ k) = Σ C(16, i) / 2¹⁶ over i ≥ k."""
    assert sum(comb(16, i) for i in range(9, 17)) / 2**16 == pytest.approx(tail(9, 16, 0.5))
    golds = {"open": "7", "prose": "proof", "coin": "yes", "sure": "yes"}
    problems = [math_problem(i, id=i).model_copy(update={"answer": g}) for i, g in golds.items()]
    passed = {"open": 9, "prose": 0, "coin": 12, "sure": 13}
    scores = [score(i, k, k < n) for i, n in passed.items() for k in range(16)]
    data, out = folder_with(tmp_path, kept=problems, scores=scores), tmp_path / "out"
    metrics = filter_rl.body(out, data, data, settings=FilterRLSettings())
    assert [p.id for p in kept_in(out)] == ["open", "sure"]
    reasons = {r.id: r.reason for r in rejected_in(out)}
    assert reasons["prose"] == "unjudgeable: the gold is no answer: 'proof'"
    assert reasons["coin"] == (
        "12 of 16 samples pass; guessing at 0.5 each does so in 3.8% of cases, more than "
        "guessing=0.02"
    )
    assert (metrics["rejected_unjudgeable"], metrics["rejected_guessable"]) == (1, 1)
    assert (metrics["guessable"], metrics["kept"]) == (2, 2)
    as_the_paper = FilterRLSettings(guessing=1)
    assert filter_rl.body(out, data, data, settings=as_the_paper)["kept"] == 3
