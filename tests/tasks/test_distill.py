"""Distill: every answer once, in order, resumed at the sample; what never came is named."""

import json
from collections.abc import Container, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from eval.judge.grades import Grade
from eval.records import Problem, Rejected, Sample
from eval.tables import read_table, write_table
from tasks.answers import distill as module
from tasks.answers.distill import distill
from tasks.store.store import Artifact
from training.engines import generate
from training.engines.interface import EngineError, Key, Request
from training.engines.journal import Journal, journal_path

FIRST_RIGHT = {"p0": 0, "p1": 3, "p2": 5, "p3": 99}
"""From which index on the answers to a prompt are right."""


class Teacher(nullcontext["Teacher"]):
    """Answers the last requests first; dies after `patience` answers, which all runs share."""

    def __init__(self, patience: float = float("inf"), ends: tuple[str, ...] = ("stop",)) -> None:
        super().__init__(self)
        self.patience, self.ends = patience, ends
        self.asked: list[Key] = []

    def answer(
        self, requests: Iterable[Request], finished: Container[Key] = ()
    ) -> Iterator[Sample]:
        for number, r in enumerate([r for r in requests if r.key not in finished][::-1]):
            if len(self.asked) >= self.patience:
                raise EngineError("the endpoint went away")
            self.asked.append(r.key)
            box = "1" if r.index >= FIRST_RIGHT[r.prompt] else "2"
            yield r.answered(
                "m",
                f"<think>\nhm\n</think>\n\n\\boxed{{{box}}}",
                finish_reason=self.ends[number % len(self.ends)],
                prompt_tokens=10,
                completion_tokens=100,
            )


@pytest.fixture
def hire(monkeypatch: pytest.MonkeyPatch):
    """`hire(patience=…)`: a teacher who answers from now on."""

    def hire(**more: Any) -> Teacher:
        teacher = Teacher(**more)
        monkeypatch.setattr(generate, "make_engine", lambda *_: teacher)
        return teacher

    return hire


@pytest.fixture
def problems(tmp_path: Path) -> Artifact:
    """Four problems of two sources; one stands there twice."""
    rows = [Problem(domain="math", prompt=p, answer="1", source=f"s{i % 2}")
            for i, p in enumerate([*FIRST_RIGHT, "p0"])]  # fmt: skip
    (tmp_path / "problems").mkdir()
    write_table(tmp_path / "problems" / "kept.parquet", Problem, rows)
    return Artifact.of_folder(tmp_path / "problems")


def run(out: Path, problems: Artifact, samples: int = 8, **chosen: Any) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    chosen = {"engine": EngineSettings(kind="scripted"), **chosen}
    settings = SampleSettings(samples_per_prompt=samples, **chosen)
    return dict(distill.body(out, problems, settings=settings, seed=0))


def samples(out: Path) -> list[Sample]:
    return list(read_table(out / "samples.parquet", Sample))


def ids(problems: Artifact) -> list[str]:
    rows = read_table(problems.file("kept.parquet"), Problem)
    return list(dict.fromkeys(p.id for p in rows))


def test_every_problem_is_answered_n_times_in_the_order_of_the_problems(tmp_path, problems, hire):
    hire()
    metrics = run(tmp_path / "o", problems)
    got = [(s.problem_id, s.index) for s in samples(tmp_path / "o")]
    assert got == [(p, i) for p in ids(problems) for i in range(8)]
    assert metrics["samples"] == 32
    assert (metrics["tokens"], metrics["tokens/s0"]) == (3200, 1600)
    assert metrics["problems_without_answer"] == 0
    assert "cost" not in metrics


def test_only_the_named_sources_are_asked_and_one_that_is_none_is_an_error(
    tmp_path, problems, hire
):
    hire()
    run(tmp_path / "o", problems, sources=("s1",))
    assert {s.problem_id for s in samples(tmp_path / "o")} == set(ids(problems)[1::2])
    with pytest.raises(ValueError, match="sources=s9 names no problem"):
        run(tmp_path / "o", problems, sources=("s9",))


def test_a_killed_stage_asks_only_for_what_is_missing_and_ends_with_the_same_bytes(
    tmp_path, problems, hire
):
    hire()
    run(tmp_path / "whole", problems)
    whole = (tmp_path / "whole" / "samples.parquet").read_bytes()
    hire(patience=20)
    with pytest.raises(EngineError):
        run(tmp_path / "o", problems)
    rest = hire()
    run(tmp_path / "o", problems)
    assert len(rest.asked) == 32 - 20
    (tmp_path / "o" / "samples.parquet").unlink()  # killed while it writes its outputs
    nobody = hire()
    run(tmp_path / "o", problems)
    assert not nobody.asked
    assert (tmp_path / "o" / "samples.parquet").read_bytes() == whole


def test_truncated_empty_refused_and_failed_answers_are_counted_and_paid(tmp_path, problems, hire):
    hire(ends=("length", "empty", "refused", "error"))
    engine = EngineSettings(
        kind="scripted", runtime=EngineRuntime(input_price=1.0, output_price=2.0)
    )
    metrics = run(tmp_path / "o", problems, engine=engine)
    ways = ("truncated", "empty", "refused", "errors")
    assert {n: metrics[n] for n in ways} == dict.fromkeys(ways, 8)
    assert metrics["cost"] == pytest.approx(32 * (10 * 1.0 + 100 * 2.0) / 1e6)


def test_problems_without_a_recording_and_unusable_recordings_are_rejected_by_name(tmp_path):
    file = tmp_path / "r.jsonl"
    rows = [
        {"question": "Q1", "response": "a", "ok": True},
        {"question": "Q1", "response": "b", "ok": 0},
        {"question": "q3", "response": "c"},
        {"question": "q2"},
        {"question": "beside", "response": "d", "ok": True},
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    asked = [Problem(domain="math", prompt=p, answer="1", source="s") for p in ("q1", "q2", "q3")]
    write_table(tmp_path / "kept.parquet", Problem, asked)
    one, two, three = (p.id for p in asked)
    engine = EngineSettings(kind="recorded", files=(str(file),), grade_field="ok", model="m")
    metrics = run(tmp_path / "o", Artifact.of_folder(tmp_path), 2, engine=engine)
    got = [(s.problem_id, s.index, s.text) for s in samples(tmp_path / "o")]
    assert got == [(one, 0, "a"), (one, 1, "b"), (three, 0, "c")]
    rejected = list(read_table(tmp_path / "o" / "rejected.parquet", Rejected))
    assert [(r.id, r.reason) for r in rejected] == [
        (two, "the recorded engine has no answer to this prompt"),
        ("", "r.jsonl row 4: field response: missing"),
    ]
    assert metrics["problems_without_answer"] == 1
    grades = list(read_table(tmp_path / "o" / "grades.parquet", Grade))
    assert [(g.problem_id, g.index, g.correct) for g in grades] == [(one, 0, True), (one, 1, False)]


def test_local_engines_get_a_job_once(tmp_path, problems, monkeypatch):
    jobs = []

    def child(job, out: Path) -> None:
        jobs.append(job)
        with Journal(journal_path(out)) as journal, job.requests.open() as lines:
            for line in lines:
                journal.append(Request.model_validate_json(line).answered("m", "t"))

    monkeypatch.setattr(module, "run_child", child)
    engine = EngineSettings(kind="transformers", model="somewhere")
    for _ in range(2):
        run(tmp_path / "o", problems, engine=engine)
    assert [job.engine.model for job in jobs] == ["somewhere"]
    assert len(samples(tmp_path / "o")) == 32


def test_a_refused_prompt_is_asked_once_though_the_stage_failed(tmp_path, problems, hire):
    teacher = hire(patience=8, ends=("error", "stop"))
    with pytest.raises(EngineError):
        run(tmp_path / "o", problems)
    teacher.patience = float("inf")
    run(tmp_path / "o", problems)
    assert len(teacher.asked) == len(set(teacher.asked))


def test_what_a_local_engine_says_is_the_error_without_its_traceback(tmp_path, problems):
    engine = EngineSettings(kind="transformers", model=str(tmp_path / "nothing"))
    with pytest.raises(EngineError, match=r"^engine model=.*nothing cannot be loaded") as caught:
        run(tmp_path / "o", problems, engine=engine)
    assert "\n" not in str(caught.value)
