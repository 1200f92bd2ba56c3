from pathlib import Path

import pytest

from klear.configs.settings.data import JudgeStageSettings
from klear.eval.records import Problem, Sample, Score
from klear.eval.tables import read_table, write_table
from klear.tasks.answers.judge import judge
from klear.tasks.store.store import SCRATCH, Artifact
from tests.tasks.manifests_by_hand import folder_with


def inputs(place: Path, texts: list[str]) -> Artifact:
    """Answers to two problems in turn; one without a text is one that the engine failed to give."""
    problems = [Problem(id=i, domain="math", prompt=i, answer="4") for i in ("a", "b")]
    samples = [
        Sample(problem_id="ab"[i % 2], index=i // 2, model="m", text=text,
               finish_reason="stop" if text else "error")
        for i, text in enumerate(texts)
    ]  # fmt: skip
    return folder_with(place, kept=problems, samples=samples)


def run(out: Path, artifact: Artifact):
    out.mkdir(exist_ok=True)
    metrics = judge.body(out, artifact, artifact, settings=JudgeStageSettings())
    return metrics, list(read_table(out / "scores.parquet", Score))


pytestmark = pytest.mark.usefixtures("scripted")


def test_scores_come_in_the_order_of_the_samples_and_what_was_not_answered_is_unscored(tmp_path):
    artifact = inputs(tmp_path / "in", ["", "right", "", "", "no", ""])
    metrics, scores = run(tmp_path / "out", artifact)
    assert [s.verdict for s in scores] == ["IE", "AC", "IE", "IE", "WA", "IE"]
    assert [(s.problem_id, s.index) for s in scores] == [("ab"[i % 2], i // 2) for i in range(6)]
    assert (metrics["unscored"], metrics["correct_share"]) == (4.0, 0.5)
    # A measurement is a metric, and no part of the table: equal verdicts give equal bytes.
    assert metrics["judge_seconds"] == 2 * 0.25
    assert {s.seconds for s in scores} == {0.0}


def test_a_killed_stage_judges_only_what_is_left(tmp_path, scripted):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(out, inputs(tmp_path / "in", ["right", "one", "two", "kill", "four"]))
    assert scripted.judged == ["right", "one", "two"]
    journal = out / SCRATCH / "scores.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])  # the kill tore the last line
    artifact = inputs(tmp_path / "in", ["right", "one", "two", "three", "four"])
    _, resumed = run(out, artifact)
    assert scripted.judged == ["two", "three", "four"]
    _, at_once = run(tmp_path / "fresh", artifact)
    assert resumed == at_once


def test_a_sample_of_an_unknown_problem_is_an_error(tmp_path: Path):
    artifact = inputs(tmp_path / "in", ["right"])
    stranger = Sample(problem_id="z", index=0, model="m", text="right")
    write_table(artifact.folder / "samples.parquet", Sample, [stranger])
    with pytest.raises(ValueError, match="a sample answers z, which is no problem here"):
        run(tmp_path / "out", artifact)
