"""Benchmarks: which problems, in which words, with which statement; metrics against brute force."""

import json
from itertools import product

import numpy as np
import pytest
from shared_data import shared_rows

from klear.configs.settings import evaluation
from klear.configs.settings.evaluation import PAPER_PROTOCOLS, WITH_FORMAT, BenchmarkProtocol
from klear.eval.benchmarks import benchmarks, metrics
from klear.eval.benchmarks.benchmarks import problems_of, question, questions_hash, score_benchmark
from klear.eval.records import CallCase, FinishReason, Problem, Sample, StdinCase, TestSuite
from tests.eval.evaluations_by_hand import STATEMENT, scored


def math_problem(prompt: str, source: str = "aime24", date: str | None = None) -> Problem:
    return Problem(domain="math", prompt=prompt, answer="1", source=source, date=date)


def sample(problem: Problem, index: int, tokens: int, finish: FinishReason = "stop") -> Sample:
    return Sample(problem_id=problem.id, index=index, model="m", text="t",
                  finish_reason=finish, completion_tokens=tokens)  # fmt: skip


def test_the_windows_of_livecodebench_hold_374_and_131_problems_51_of_them_in_both():
    assert benchmarks.in_window(PAPER_PROTOCOLS[4], "2025-02-01T10:30:00")
    problems = [
        math_problem(r["question_id"], "livecodebench", r["contest_date"])
        for r in shared_rows("livecodebench/problems_v6")
    ]
    by_protocol = {p.name: problems_of(p, problems) for p in PAPER_PROTOCOLS[3:]}
    assert {name: len(chosen) for name, chosen in by_protocol.items()} == {
        "lcb_v5": 374,
        "lcb_v6": 131,
    }
    february = sum((p.date or "").startswith("2025-02") for p in problems)
    assert benchmarks.overlaps(by_protocol) == {
        "lcb_v5": {"lcb_v6": february},
        "lcb_v6": {"lcb_v5": february},
    }
    assert february == 51


def test_the_hash_of_the_questions_sees_every_word_and_their_order():
    assert questions_hash(["ab", "c"]) != questions_hash(["a", "bc"])
    assert questions_hash(["a", "b"]) != questions_hash(["b", "a"])
    p = math_problem("p")
    plain = score_benchmark(BenchmarkProtocol(name="aime24"), [p], {}, {}, STATEMENT)
    boxed = BenchmarkProtocol(name="aime24", question="{prompt}\n{format}")
    assert plain.questions == questions_hash(["p"])
    assert plain.avg is None
    assert benchmarks.BenchmarkResult.model_validate_json(plain.model_dump_json()) == plain
    assert score_benchmark(boxed, [p], {}, {}, STATEMENT).questions != plain.questions


def test_a_problem_listed_twice_is_asked_once_and_order_is_kept():
    a, b, other = math_problem("a"), math_problem("b"), math_problem("c", source="x")
    chosen = problems_of(BenchmarkProtocol(name="aime24"), [b, other, a, b])
    assert [p.prompt for p in chosen] == ["b", "a"]


@pytest.mark.parametrize(
    ("protocol", "dates", "message"),
    [
        ({"name": "aime25"}, (None,), r"'aime25'.*benchmarks\.sources.*aime24.*evaluate.protocols"),
        ({"name": "aime24", "date_from": "2024-01-01"}, (None,), "date_field"),
        ({"name": "aime24", "date_from": "2024-01-01"}, ("2023-06-01", "2023-05-07"),
         "2023-05-07 to 2023-06-01"),
        ({"date_from": "2025-02-01", "date_to": "2025-02-01"}, (None,), "must come after"),
        ({"question": "Solve this!"}, (None,), "once"),
    ],
)  # fmt: skip
def test_a_protocol_that_asks_nothing_says_what_there_is_and_the_fix(protocol, dates, message):
    problems = [math_problem(f"p{n}", date=date) for n, date in enumerate(dates)]
    with pytest.raises(ValueError, match=message):
        problems_of(BenchmarkProtocol(**{"name": "aime24", **protocol}), problems)


def test_a_result_counts_what_was_cut_lost_and_scored():
    p, q = math_problem("p"), math_problem("q")
    outcomes = {(p.id, 0): True, (p.id, 1): False, (q.id, 0): None}  # (q, 1) was never answered
    outcomes[p.id, 2] = True  # beyond k: it belongs to another protocol
    scores = {key: scored(key[0], o, key[1]) for key, o in outcomes.items()}
    samples = {(p.id, 0): sample(p, 0, 10), (p.id, 1): sample(p, 1, 64, "length"),
               (q.id, 0): sample(q, 0, 16)}  # fmt: skip
    result = score_benchmark(
        BenchmarkProtocol(name="aime24", k=2), [p, q], samples, scores, STATEMENT
    )
    assert (result.problems, result.problems_unscored) == (1, 1)
    assert (result.samples, result.samples_unscored, result.truncated) == (2, 2, 1)
    assert result.mean_tokens == (10 + 64 + 16) / 3
    assert (result.avg, result.pass_at_k) == (1 / 2, 1.0)


def test_answers_cut_before_max_tokens_are_counted_as_out_of_positions():
    p, most = math_problem("p"), STATEMENT.max_tokens
    lengths = [most, most - 1, most - 1]
    samples = {(p.id, i): sample(p, i, tokens, "length") for i, tokens in enumerate(lengths)}
    for i in (0, 1):  # the third is of an endpoint that counts no tokens
        samples[p.id, i] = samples[p.id, i].model_copy(update={"prompt_tokens": 5})
    samples[p.id, 3] = sample(p, 3, most - 1)
    result = score_benchmark(BenchmarkProtocol(name="aime24", k=4), [p], samples, {}, STATEMENT)
    assert (result.truncated, result.out_of_positions) == (3, 1)


def test_majority_is_reported_where_right_answers_agree():
    p = math_problem("p")
    scores = {(p.id, i): scored(p.id, i < 2, i, answer=str(i // 2)) for i in range(3)}
    protocol = BenchmarkProtocol(name="aime24", k=3)
    assert score_benchmark(protocol, [p], {}, scores, STATEMENT).majority_at_k == 1.0
    tests = TestSuite(kind="stdin", cases=(StdinCase(input="", output=""),))
    code = Problem(id=p.id, domain="code", prompt="p", tests=tests, source="aime24")
    target = p.model_copy(update={"numbers": (1, 2)})
    for free in (code, target):
        assert score_benchmark(protocol, [free], {}, scores, STATEMENT).majority_at_k is None


BARE, WITH = BenchmarkProtocol(name="b"), BenchmarkProtocol(name="b", question=WITH_FORMAT)


def code(suite: TestSuite) -> Problem:
    return Problem(domain="code", prompt="Double {n}.", tests=suite)


def test_the_instruction_fits_the_way_the_problem_is_judged_and_a_bare_problem_has_none():
    sum_of = Problem(domain="math", prompt="1 + 1? {format}", answer="2")
    assert question(BARE, sum_of) == "1 + 1? {format}"
    assert question(WITH, sum_of.model_copy(update={"prompt": "1?"})) == f"1?\n\n{benchmarks.MATH}"
    stdin = TestSuite(kind="stdin", cases=(StdinCase(input="1", output="2"),))
    assert question(WITH, code(stdin)) == f"Double {{n}}.\n\n{benchmarks.STDIN}"
    call = TestSuite(kind="call", fn_name="double", cases=(CallCase(args=(1,), output=2),))
    assert "`class Solution` with the method `double`" in question(WITH, code(call))


def test_the_named_benchmarks_are_those_of_table_1_with_the_instruction_and_more():
    protocols = evaluation.named_protocols()
    assert {"math500", "livecodebench"} <= set(protocols)
    for paper in PAPER_PROTOCOLS:
        ours = protocols[paper.name]
        assert (ours.k, ours.date_from, ours.date_to) == (paper.k, paper.date_from, paper.date_to)
        assert (ours.question, paper.question) == (WITH_FORMAT, "{prompt}")


def test_the_template_hash_sees_every_word_of_the_template_wherever_it_is_written(tmp_path):
    files = {
        "plain": ("chat_template.jinja", "a"),
        "other": ("chat_template.jinja", "b"),
        "old": ("tokenizer_config.json", json.dumps({"chat_template": "a"})),
        "bare": ("tokenizer_config.json", "{}"),
    }
    hashes = {}
    for name, (file, text) in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
        hashes[name] = benchmarks.template_hash(tmp_path / name)
    assert hashes["old"] == hashes["plain"] != hashes["other"]
    assert hashes["bare"] == "none"


def test_a_problem_without_a_scored_sample_is_excluded_and_counted():
    """And every other weighs the same, however many of its samples were scored."""
    outcomes = {"a": [True, False], "lost": [None, None], "b": [True, None], "c": [False, None]}
    summary = metrics.summarise(outcomes, resamples=50, seed=0)
    assert (summary["problems"], summary["problems_unscored"]) == (3, 1)
    assert (summary["samples"], summary["samples_unscored"]) == (4, 4)
    assert summary["avg"] == pytest.approx((1 / 2 + 1) / 3)
    assert summary["pass_at_k"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answers", "outcomes", "share"),
    [
        (["7", "7", "8"], [False, False, True], 0),  # votes count, not right samples
        (["1", "2", " 2 "], [False, True, True], 1),
        (["7", "8"], [True, False], 1 / 2),  # a tie: the expected value of drawing one
        ([None, None, "8", "7", "7"], [False, False, True, None, None], 1),  # no vote
        ([None], [False], 0),
    ],
)
def test_the_majority_is_the_most_frequent_answer(answers, outcomes, share):
    assert metrics.majority_at_k({"p": answers}, {"p": outcomes}) == pytest.approx(share)


def test_bootstrap_matches_the_exact_distribution_of_all_resamples():
    means = np.array([0.0, 0.2, 0.9, 1.0])
    exact = np.array([np.mean(draw) for draw in product(means, repeat=4)])
    low, high = interval = metrics.bootstrap_interval(means, resamples=40_000, seed=3)
    assert interval == metrics.bootstrap_interval(means, resamples=40_000, seed=3)
    assert low == pytest.approx(np.percentile(exact, 2.5), abs=0.03)
    assert high == pytest.approx(np.percentile(exact, 97.5), abs=0.03)


def test_the_interval_over_samples_matches_every_redraw_of_the_samples():
    """Two problems with 2 samples each: all 4 x 4 redraws, each as likely, spread by √2 around the
    mean, so that their variance is that of 2 draws: p (1 − p) / 2 for the unbiased p (1 − p)."""
    rows = {"a": [True, False], "b": [True, True]}
    mean = 3 / 4
    exact = [mean + 2**0.5 * (np.mean([*a, *b]) - mean) for a in product(rows["a"], repeat=2)
             for b in product(rows["b"], repeat=2)]  # fmt: skip
    interval = metrics.sample_interval(rows, resamples=20_000, seed=0)
    assert interval == pytest.approx((np.percentile(exact, 2.5), np.percentile(exact, 97.5)))
    assert metrics.sample_interval({"a": [True, True], "b": [False]}, 100, 0) == (None, None)
