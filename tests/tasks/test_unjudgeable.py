"""A prompt without gold goes through every stage: kept for SFT, never scored, never rewarded."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from configs.settings.data import (
    DifficultySettings,
    FilterRLSettings,
    FilterTestsSettings,
    JudgeStageSettings,
    SelectSettings,
)
from configs.settings.judging import JudgeRuntime, JudgeSettings
from eval.judge.judge import NO_GOLD, Judge
from eval.records import Example, Problem, Rejected, Sample, Score
from eval.tables import read_table, write_table
from tasks.answers.difficulty import Difficulty, difficulty
from tasks.answers.filter_rl import filter_rl
from tasks.answers.judge import judge
from tasks.answers.select import select
from tasks.data.filter_tests import filter_tests
from tasks.store.store import Artifact

ONE_WORKER = JudgeSettings(runtime=JudgeRuntime(workers=1))
JUDGED = Problem(domain="math", prompt="1+1?", answer="2", source="gold")
PROMPTS = [
    Problem(domain="math", prompt="why?", judgeable=False, source="none"),
    Problem(domain="code", prompt="sort", judgeable=False, source="none"),
]
PROBLEMS = [JUDGED, *PROMPTS]
TEXT = "<think>hm</think>\n\\boxed{2}"


def test_a_problem_is_either_without_gold_or_with_it():
    with pytest.raises(ValidationError, match="judgeable is false, yet"):
        Problem(domain="math", prompt="p", judgeable=False, answer="2")
    for domain in ("math", "code"):
        with pytest.raises(ValidationError, match="needs"):
            Problem(domain=domain, prompt="p")


@pytest.mark.parametrize("problem", PROMPTS, ids=lambda p: p.domain)
def test_every_answer_to_it_is_unscored_with_the_reason_and_never_zero(problem, tmp_path):
    with Judge(ONE_WORKER) as one:
        scores = [one.judge(problem, text) for text in (TEXT, "no answer at all", "")]
    for score in scores:
        assert (score.verdict, score.reason) == ("IE", NO_GOLD)
        assert (score.reward, score.correct, score.pass_rate) == (None, None, None)
    write_table(tmp_path / "s.parquet", Score, scores)
    assert list(read_table(tmp_path / "s.parquet", Score)) == scores


@pytest.fixture
def stages(tmp_path: Path) -> tuple[Artifact, dict[str, float]]:
    """A folder of problems, samples (one each), their scores and difficulties, by the stages
    themselves, and what these counted."""
    samples = [Sample(problem_id=p.id, index=0, model="m", text=TEXT) for p in PROBLEMS]
    write_table(tmp_path / "kept.parquet", Problem, PROBLEMS)
    write_table(tmp_path / "samples.parquet", Sample, samples)
    data = Artifact.of_folder(tmp_path)
    found = judge.body(tmp_path, data, data, settings=JudgeStageSettings(judge=ONE_WORKER))
    data = Artifact.of_folder(tmp_path)
    rated = difficulty.body(tmp_path, data, data, data, settings=DifficultySettings())
    (tmp_path / "out").mkdir()
    return Artifact.of_folder(tmp_path), {**found, **rated}


def reasons(data: Artifact) -> list[str]:
    return [r.reason for r in read_table(data.folder / "out" / "rejected.parquet", Rejected)]


def test_it_is_unscored_and_unrated(stages):
    data, counted = stages
    assert (counted["unscored"], counted["not_judgeable"], counted["correct_share"]) == (2, 2, 1)
    assert (counted["easy"], counted["unrated"]) == (1, 2)
    rows = read_table(data.file("difficulty.parquet"), Difficulty)
    assert [(r.label, r.pass_rate) for r in rows] == [
        ("easy", 1.0), ("unrated", None), ("unrated", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (SelectSettings(), ["gold", "none", "none"]),
        (SelectSettings(correctness="only_true"), ["gold"]),
        (SelectSettings(difficulty="easy"), ["gold"]),
    ],
)
def test_the_mixed_set_keeps_it_and_what_asks_for_gold_says_why_not(stages, settings, kept):
    data, _ = stages
    out = data.folder / "out"
    metrics = select.body(out, data, data, data, data, settings=settings, seed=0)
    examples = list(read_table(out / "kept.parquet", Example))
    assert [e.source for e in examples] == kept
    assert [e.correct for e in examples if e.source == "none"] == [None] * kept.count("none")
    assert reasons(data) == ["not judgeable"] * (3 - len(kept))
    assert metrics.get("rejected/not judgeable", 0) == 3 - len(kept)


def test_rl_rejects_it_before_and_after_it_is_sampled_and_counts_it(stages):
    data, _ = stages
    out = data.folder / "out"
    metrics = filter_tests.body(out, data, settings=FilterTestsSettings(min_tests=1))
    assert (metrics["kept"], metrics["not_judgeable"]) == (1, 2)
    assert reasons(data) == [NO_GOLD, NO_GOLD]
    metrics = filter_rl.body(out, data, data, settings=FilterRLSettings())
    assert (metrics["kept"], metrics["rejected_not_judgeable"]) == (1, 2)
    assert reasons(data) == [NO_GOLD, NO_GOLD]


def test_tables_written_before_prompts_could_lack_gold_are_read(tmp_path):
    import pyarrow.parquet as pq

    write_table(tmp_path / "new.parquet", Problem, [JUDGED])
    old = pq.read_table(tmp_path / "new.parquet").drop_columns(["judgeable"])
    pq.write_table(old, tmp_path / "old.parquet")
    assert list(read_table(tmp_path / "old.parquet", Problem)) == [JUDGED]
