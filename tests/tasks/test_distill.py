"""Distill: every answer once, in order, resumed at the sample; what never came is named."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from configs.settings.sources import CollectSettings, Source
from eval.judge.grades import Grade
from eval.records import Problem, Rejected, Sample
from eval.tables import read_table, write_table
from tasks.answers import asking as module
from tasks.answers.distill import distill
from tasks.data.collect import collect
from tasks.store.store import Artifact
from training.engines.interface import EngineError, Request
from training.engines.journal import Journal, journal_path
from training.engines.make import make_engine

SCRIPTED = SampleSettings(samples_per_prompt=3, engine=EngineSettings(kind="scripted"))


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Artifact:
    out = tmp_path_factory.mktemp("collected")
    shared = {"kind": "generated", "size": 20}
    sources = (
        Source(name="cd", family="countdown", duplicate_share=0.1, **shared),
        Source(name="be", family="by_example", domain="code", **shared),
    )
    collect.body(out, settings=CollectSettings(sources=sources), seed=0)
    return Artifact.of_folder(out)


def ids(problems: Artifact, *sources: str) -> list[str]:
    rows = read_table(problems.file("kept.parquet"), Problem)
    return list(dict.fromkeys(p.id for p in rows if not sources or p.source in sources))


def run(out: Path, problems: Artifact, settings: SampleSettings = SCRIPTED) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return dict(distill.body(out, problems, settings=settings, seed=0))


def samples(out: Path) -> list[Sample]:
    return list(read_table(out / "samples.parquet", Sample))


def test_every_problem_is_answered_n_times_in_the_order_of_the_problems(tmp_path, problems):
    metrics = run(tmp_path / "o", problems)
    got = [(s.problem_id, s.index) for s in samples(tmp_path / "o")]
    assert got == [(p, i) for p in ids(problems) for i in range(3)]
    assert metrics["samples"] == len(got) == 3 * 38
    assert metrics["tokens"] > 0
    assert metrics["problems_without_answer"] == 0
    assert "cost" not in metrics


def test_only_the_named_sources_are_asked(tmp_path, problems):
    run(tmp_path / "o", problems, SCRIPTED.model_copy(update={"sources": ("be",)}))
    assert {s.problem_id for s in samples(tmp_path / "o")} == set(ids(problems, "be"))


def test_a_source_that_does_not_exist_is_an_error(tmp_path, problems):
    with pytest.raises(ValueError, match="sources=cdx names no problem"):
        run(tmp_path / "o", problems, SCRIPTED.model_copy(update={"sources": ("cdx",)}))


class Dying:
    """The scripted engine, ended in the middle of its work; counts what it was asked."""

    asked: list[Request]

    def __init__(self, settings, sampling, after: int) -> None:
        self.engine, self.after = make_engine(settings, sampling), after
        Dying.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        Dying.asked = list(requests)
        for i, sample in enumerate(self.engine.answer(Dying.asked[::-1])):
            if i == self.after:
                raise EngineError("the endpoint went away")
            yield sample


def test_a_killed_stage_asks_only_for_what_is_missing_and_ends_with_the_same_bytes(
    tmp_path, problems, monkeypatch
):
    run(tmp_path / "whole", problems)
    monkeypatch.setattr(module, "make_engine", lambda s, p, _: Dying(s, p, after=50))
    with pytest.raises(EngineError):
        run(tmp_path / "o", problems)
    monkeypatch.setattr(module, "make_engine", lambda s, p, _: Dying(s, p, after=1000))
    run(tmp_path / "o", problems)
    assert len(Dying.asked) == 3 * 38 - 50
    whole = (tmp_path / "whole" / "samples.parquet").read_bytes()
    assert (tmp_path / "o" / "samples.parquet").read_bytes() == whole


def test_a_stage_killed_while_it_writes_its_outputs_asks_nothing_again(
    tmp_path, problems, monkeypatch
):
    run(tmp_path / "o", problems)
    before = (tmp_path / "o" / "samples.parquet").read_bytes()
    (tmp_path / "o" / "samples.parquet").unlink()
    monkeypatch.setattr(module, "make_engine", lambda *_: pytest.fail("asked again"))
    run(tmp_path / "o", problems)
    assert (tmp_path / "o" / "samples.parquet").read_bytes() == before


class Marked(Dying):
    """Answers that ended in each possible way, with token counts."""

    reasons = ("stop", "length", "empty", "refused", "error")

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        for i, r in enumerate(requests):
            yield Sample(
                problem_id=r.problem_id,
                index=r.index,
                model="m",
                text="",
                finish_reason=self.reasons[i % 5],
                prompt_tokens=10,
                completion_tokens=100,
            )


def test_truncated_empty_refused_and_failed_answers_are_counted_and_paid(
    tmp_path, problems, monkeypatch
):
    """38 problems x 5 samples: each way to end comes 38 times."""
    monkeypatch.setattr(module, "make_engine", lambda s, p, _: Marked(s, p, after=0))
    runtime = EngineRuntime(input_price=1.0, output_price=2.0)
    engine = EngineSettings(kind="scripted", runtime=runtime)
    metrics = run(tmp_path / "o", problems, SampleSettings(samples_per_prompt=5, engine=engine))
    ways = ("truncated", "empty", "refused", "errors")
    assert {n: metrics[n] for n in ways} == dict.fromkeys(ways, 38)
    assert metrics["cost"] == pytest.approx(190 * (10 * 1.0 + 100 * 2.0) / 1e6)


def recorded_problems(folder: Path) -> Artifact:
    folder.mkdir()
    rows = [Problem(domain="math", prompt=p, answer="1", source="s") for p in ("q1", "q2", "q3")]
    write_table(folder / "kept.parquet", Problem, rows)
    return Artifact.of_folder(folder)


def test_problems_without_a_recording_and_unusable_recordings_are_rejected_by_name(tmp_path):
    file = tmp_path / "r.jsonl"
    rows = [
        {"question": "Q1", "response": "a", "ok": True},
        {"question": "Q1", "response": "b", "ok": False},
        {"question": "q3", "response": "c", "ok": True},
        {"question": "q2"},
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    problems = recorded_problems(tmp_path / "p")
    engine = EngineSettings(kind="recorded", files=(str(file),), grade_field="ok", model="m")
    settings = SampleSettings(samples_per_prompt=2, engine=engine)
    metrics = run(tmp_path / "o", problems, settings)
    one, two, three = ids(problems)
    got = [(s.problem_id, s.index, s.text) for s in samples(tmp_path / "o")]
    assert got == [(one, 0, "a"), (one, 1, "b"), (three, 0, "c")]
    rejected = list(read_table(tmp_path / "o" / "rejected.parquet", Rejected))
    assert [r.reason for r in rejected] == [
        "the recorded engine has no answer to this prompt",
        "r.jsonl row 4: field response: missing",
    ]
    assert rejected[0].id == two
    assert metrics["problems_without_answer"] == 1
    grades = list(read_table(tmp_path / "o" / "grades.parquet", Grade))
    assert [(g.problem_id, g.index, g.correct) for g in grades] == [
        (one, 0, True),
        (one, 1, False),
        (three, 0, True),
    ]


def test_local_engines_get_a_job_and_only_what_the_journal_lacks_is_left_to_do(
    tmp_path, problems, monkeypatch
):
    jobs = []

    def child(job, out: Path) -> None:
        jobs.append(job)
        with Journal(journal_path(out)) as journal, job.requests.open() as lines:
            for line in lines:
                r = Request.model_validate_json(line)
                journal.append(Sample(problem_id=r.problem_id, index=r.index, model="m", text="t"))

    monkeypatch.setattr(module, "run_child", child)
    engine = EngineSettings(kind="transformers", model="somewhere")
    settings = SampleSettings(samples_per_prompt=2, engine=engine)
    run(tmp_path / "o", problems, settings)
    run(tmp_path / "o", problems, settings)
    (job,) = jobs
    assert job.engine.model == "somewhere"
    assert len(samples(tmp_path / "o")) == 2 * 38


def test_a_local_engine_that_ends_without_all_answers_fails_the_stage(
    tmp_path, problems, monkeypatch
):
    monkeypatch.setattr(module, "run_child", lambda job, out: None)
    engine = EngineSettings(kind="transformers", model="somewhere")
    with pytest.raises(EngineError, match=r"without 38 of 38 answers.*child\.log"):
        run(tmp_path / "o", problems, SampleSettings(samples_per_prompt=1, engine=engine))
