"""Which answers are trained on, and of these a subset of fixed size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klear.configs.settings.data import SelectSettings
from klear.eval.records import Example, Problem, Sample, Score, StdinCase, TestSuite
from klear.tasks.answers.difficulty import Difficulty
from klear.tasks.answers.select import GRID, choose, embed, k_center_greedy, select
from tests.eval.evaluations_by_hand import scored
from tests.tasks.manifests_by_hand import folder_with, kept_in, rejected_in

TESTS = TestSuite(kind="stdin", cases=(StdinCase(input="1", output="1"),))
GOOD = "<think>so</think> 4"


class Data:
    """A small set of problems, answers and scores, written as the stages write them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.samples: list[Sample] = []
        self.scores: list[Score] = []
        self.labels: list[Difficulty] = []

    def problem(self, id_: str, prompt: str = "", domain="math", source="s", label="hard"):
        gold: Any = {"answer": "4"} if domain == "math" else {"tests": TESTS}
        origin: Any = {"domain": domain, "source": source}
        self.problems.append(Problem(id=id_, prompt=prompt or id_, **origin, **gold))
        rated: Any = {"pass_rate": 0.0, "scored": 1, "label": label}
        self.labels.append(Difficulty(problem_id=id_, **origin, **rated))
        return self

    def answer(self, id_: str, correct: bool | None = True, text: str = GOOD, finish: Any = "stop"):
        index = sum(s.problem_id == id_ for s in self.samples)
        fields = {"index": index, "text": text, "finish_reason": finish}
        self.samples.append(Sample(problem_id=id_, model="m", **fields))
        self.scores.append(scored(id_, correct, index))
        return self

    def run(self, folder: Path, **chosen):
        tables = {"samples": self.samples, "scores": self.scores, "difficulty": self.labels}
        data, out = folder_with(folder, kept=self.problems, **tables), folder / "out"
        settings = SelectSettings(**chosen)
        metrics = select.body(out, data, data, data, data, settings=settings, seed=0)
        return metrics, kept_in(out, Example), {r.id: r.reason for r in rejected_in(out)}


def named(examples: list[Example]) -> list[str]:
    return [f"{e.problem_id}/{e.index}" for e in examples]


def test_right_and_wrong_answers_are_kept_unless_only_those_known_to_be_right_are(tmp_path: Path):
    data = Data().problem("a", "What is 2+2?").answer("a").answer("a", correct=False)
    metrics, kept, rejected = data.answer("a", correct=None).run(tmp_path / "mixed")
    assert {(e.prompt, e.response) for e in kept} == {("What is 2+2?", GOOD)}
    assert [e.correct for e in kept] == [True, False, None]
    assert rejected == {}
    assert metrics["kept"] == metrics["kept_math"] == 3.0
    assert metrics["kept_correct"] == 1.0
    _, kept, rejected = data.run(tmp_path / "right", correctness="only_true")
    assert named(kept) == ["a/0"]
    assert rejected == {"a/1": "wrong", "a/2": "unscored"}


def test_an_answer_that_cannot_be_trained_on_says_why(tmp_path: Path):
    data = Data().problem("a").answer("a")
    wrong = [
        (GOOD, "length", "truncated"),
        ("", "empty", "empty"),
        ("  ", "stop", "empty"),
        (GOOD, "refused", "refused"),
        (GOOD, "error", "engine error"),
        ("<think>so</think>\n ", "stop", "no answer after the think block"),
        ("<think>never closed", "stop", "no single closed think block"),
        ("the answer is 4", "stop", "no single closed think block"),
    ]
    for text, finish, _ in wrong:
        data.answer("a", text=text, finish=finish)
    metrics, kept, rejected = data.run(tmp_path / "as_usual")
    assert named(kept) == ["a/0"]
    assert rejected == {f"a/{i}": reason for i, (_, _, reason) in enumerate(wrong, 1)}
    assert metrics["rejected/empty"] == 2.0
    _, kept, _ = data.run(tmp_path / "without_thinking", require_think=False)
    assert named(kept) == ["a/0", "a/8"]


def test_a_stratum_keeps_its_label_and_top_k_the_best_ranked_sources_of_each_domain(tmp_path: Path):
    data = Data()
    for label in ("easy", "hard", "unrated"):
        data.problem(label, label=label).answer(label)
    _, kept, rejected = data.run(tmp_path / "easy", difficulty="easy")
    assert named(kept) == ["easy/0"]
    assert rejected == {f"{x}/0": f"{x} problem" for x in ("hard", "unrated")}
    data = Data()
    for domain in ("math", "code"):
        for source in ("gold", "silver", "tin"):
            id_ = f"{domain}-{source}"
            data.problem(id_, domain=domain, source=source).answer(id_)
    ranked = {"math_sources": ("silver", "gold", "tin"), "code_sources": ("tin", "gold")}
    _, kept, rejected = data.run(tmp_path / "top", top_k_sources=1, **ranked)
    assert named(kept) == ["math-silver/0", "code-tin/0"]
    assert set(rejected.values()) == {"source not in the mixture"}


def test_scores_of_other_samples_are_an_error(tmp_path: Path):
    data = Data().problem("a").problem("b").answer("a").answer("b")
    data.scores.reverse()
    with pytest.raises(ValueError, match="score of b 0 stands beside the sample a 0"):
        data.run(tmp_path)


TOPICS = ("circle area radius", "prime divisor remainder", "graph vertex edge")
PROMPTS = ["circle area radius", "prime divisor", "graph edge", "radius, Circle: area!", "$", ""]
Pools = dict[str, dict[str, list[int]]]


def test_a_balanced_mixture_needs_answers_of_every_domain_that_was_answered(tmp_path: Path):
    data = Data().problem("m").answer("m").problem("c", domain="code")
    with pytest.raises(ValueError, match=r"no answer of code is fit .*truncated.*balanced=false"):
        data.answer("c", finish="length").run(tmp_path / "cut", balanced=True)
    _, kept, _ = data.answer("c").run(tmp_path / "both", balanced=True)
    assert named(kept) == ["m/0", "c/1"]


def candidates(pools: dict[str, int], answers: int = 1) -> Pools:
    """So many prompts of each topic in each pool, with so many answers each."""
    rows = iter(range(1_000))
    return {
        pool: {
            f"{topic} {pool}{number}": [next(rows) for _ in range(answers)]
            for topic in TOPICS
            for number in range(count)
        }
        for pool, count in pools.items()
    }


def chosen(pools: Pools, seed: int = 0, **settings) -> list[str]:
    prompt = {r: id_ for pool in pools.values() for id_, rows in pool.items() for r in rows}
    rows = choose(pools, lambda id_: f"{id_} {id_}", SelectSettings(**settings), seed)
    return [prompt[row] for row in sorted(rows)]


def test_each_pool_covers_every_topic_before_it_repeats_one_and_every_prompt_before_an_answer():
    kept = chosen(candidates({"easy": 4, "hard": 2}, answers=2), balanced=True, size=6)
    for pool in ("easy", "hard"):
        topics = [prompt.split()[0] for prompt in kept if pool in prompt]
        assert sorted(topics) == ["circle", "graph", "prime"]
    for size in (1, 5, 17, 100):
        kept = chosen(candidates({"all": 3}, answers=2), size=size)
        assert len(kept) == min(size, 18)
        assert len(set(kept)) == min(size, 9)


def naive(points: np.ndarray, k: int, first: int) -> list[int]:
    points = points.astype(np.float64)
    picks = [first]
    nearest = ((points - points[first]) ** 2).sum(axis=1)
    while len(picks) < k:
        nearest[picks] = -1.0
        picks.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((points - points[picks[-1]]) ** 2).sum(axis=1))
    return picks


def on_grid(points: np.ndarray) -> np.ndarray:
    return np.round(points / GRID) * GRID


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 25),
)
def test_ties_and_copies_are_broken_like_the_naive_algorithm(points, k: int):
    grid = np.array(points, np.float64)
    k = min(k, len(grid))
    assert k_center_greedy(grid, k) == naive(grid, k, 0)


def test_the_order_of_sums_changes_no_pick():
    """Columns in another order are added in another order; nearly copies would show it."""
    points = on_grid(np.random.default_rng(0).uniform(-1, 1, size=(400, 64)))
    points[200:] = points[:200]
    points[200:, 0] += GRID
    turned = np.ascontiguousarray(points[:, ::-1])
    assert k_center_greedy(points, 150) == k_center_greedy(turned, 150)


def test_prompts_of_the_same_words_are_the_same_point():
    points = embed(PROMPTS, 256, 0)
    assert np.array_equal(points[0], points[3])
    assert len(np.unique(points, axis=0)) == len(PROMPTS) - 1
    assert points.dtype == np.float32
    assert np.array_equal(points, on_grid(points))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-4)
    assert embed(PROMPTS, 2, 0).shape == (6, 2)
    assert embed(["one prompt"] * 2, 256, 0).shape[0] == 2
