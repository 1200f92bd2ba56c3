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
def tables(tmp_path: Path) -> dict[str, Artifact]:
    """problems, samples (one each), their scores and difficulties, by the stages themselves."""
    for name in ("problems", "samples", "scores", "strata"):
        (tmp_path / name).mkdir()
    samples = [Sample(problem_id=p.id, index=0, model="m", text=TEXT) for p in PROBLEMS]
    write_table(tmp_path / "problems" / "kept.parquet", Problem, PROBLEMS)
    write_table(tmp_path / "samples" / "samples.parquet", Sample, samples)
    made = {n: Artifact.of_folder(tmp_path / n) for n in ("problems", "samples")}
    metrics = judge.body(
        tmp_path / "scores", *made.values(), settings=JudgeStageSettings(judge=ONE_WORKER)
    )
    assert (metrics["unscored"], metrics["not_judgeable"], metrics["correct_share"]) == (2, 2, 1)
    made["scores"] = Artifact.of_folder(tmp_path / "scores")
    metrics = difficulty.body(tmp_path / "strata", *made.values(), settings=DifficultySettings())
    assert (metrics["easy"], metrics["unrated"], metrics["not_judgeable"]) == (1, 2, 2)
    made["strata"] = Artifact.of_folder(tmp_path / "strata")
    return made


def test_it_is_unrated(tables):
    rows = read_table(tables["strata"].file("difficulty.parquet"), Difficulty)
    rated = [(r.label, r.pass_rate) for r in rows]
    assert rated == [("easy", 1.0), ("unrated", None), ("unrated", None)]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (SelectSettings(), ["gold", "none", "none"]),
        (SelectSettings(correctness="only_true"), ["gold"]),
        (SelectSettings(difficulty="easy"), ["gold"]),
    ],
)
def test_the_mixed_set_keeps_it_and_what_asks_for_gold_says_why_not(
    tables, tmp_path, settings, kept
):
    (tmp_path / "out").mkdir()
    metrics = select.body(tmp_path / "out", *tables.values(), settings=settings, seed=0)
    examples = list(read_table(tmp_path / "out" / "kept.parquet", Example))
    assert [e.source for e in examples] == kept
    assert [e.correct for e in examples if e.source == "none"] == [None] * kept.count("none")
    rejected = list(read_table(tmp_path / "out" / "rejected.parquet", Rejected))
    assert [r.reason for r in rejected] == ["not judgeable"] * (3 - len(kept))
    assert metrics.get("rejected/not judgeable", 0) == 3 - len(kept)


def test_rl_rejects_it_before_and_after_it_is_sampled_and_counts_it(tables, tmp_path):
    out = tmp_path / "out"
    out.mkdir()

    def rejected() -> list[str]:
        return [r.reason for r in read_table(out / "rejected.parquet", Rejected)]

    fewest = FilterTestsSettings(min_tests=1)
    metrics = filter_tests.body(out, tables["problems"], settings=fewest)
    assert (metrics["kept"], metrics["not_judgeable"]) == (1, 2)
    assert rejected() == [NO_GOLD, NO_GOLD]
    metrics = filter_rl.body(out, tables["problems"], tables["scores"], settings=FilterRLSettings())
    assert (metrics["kept"], metrics["rejected_not_judgeable"]) == (1, 2)
    assert rejected() == [NO_GOLD, NO_GOLD]


def test_tables_written_before_prompts_could_lack_gold_are_read(tmp_path):
    import pyarrow.parquet as pq

    write_table(tmp_path / "new.parquet", Problem, [JUDGED])
    old = pq.read_table(tmp_path / "new.parquet").drop_columns(["judgeable"])
    pq.write_table(old, tmp_path / "old.parquet")
    assert list(read_table(tmp_path / "old.parquet", Problem)) == [JUDGED]
