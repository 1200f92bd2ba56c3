"""Distill: every answer once, in order, resumed at the sample; what never came is named."""

import json
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings
from klear.eval.benchmarks.grades import Grade
from klear.eval.records import Sample
from klear.eval.records.tables import read_table
from klear.tasks.answers import distill as module
from klear.tasks.answers.distill import (
    NeedsApproval,
    distill,
    pilot_of,
    recorded_files,
    requests_of,
)
from klear.tasks.store.store import Artifact
from klear.training.engines import generate
from klear.training.engines.generate import Journal, journal_path
from klear.training.engines.interface import Engine, EngineError, Key, Request
from tests.eval.evaluations_by_hand import math_problem
from tests.tasks.manifests_by_hand import folder_with, jsonl, kept_in, rejected_in

PROMPTS = ("p0", "p1", "p2", "p3")


class Teacher(Engine):
    """Answers the last requests first; dies after `patience` answers, which all runs share.

    With `tokens`, the length of an answer to each problem, it answers as it is asked.
    """

    def __init__(
        self,
        patience: float = float("inf"),
        ends: tuple[str, ...] = ("stop",),
        tokens: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.patience, self.ends, self.tokens = patience, ends, tokens
        self.answered: list[Key] = []

    def answer(
        self, requests: Iterable[Request], finished: Container[Key] = ()
    ) -> Iterator[Sample]:
        order = requests if self.tokens else reversed(list(requests))
        for number, r in enumerate(r for r in order if r.key not in finished):
            if len(self.answered) >= self.patience:
                raise EngineError("the endpoint went away")
            self.answered.append(r.key)
            yield r.answered(
                "m",
                "<think>\nhm\n</think>\n\n\\boxed{1}",
                finish_reason=self.ends[number % len(self.ends)],
                prompt_tokens=10,
                completion_tokens=self.tokens.get(r.problem_id, 100),
            )

    def costs(self) -> list[float]:
        return [self.tokens[problem] * PRICE / 1e6 for problem, _ in self.answered]


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
    rows = [math_problem(p, f"s{i % 2}") for i, p in enumerate([*PROMPTS, "p0"])]
    return folder_with(tmp_path / "problems", kept=rows)


def run(out: Path, problems: Artifact, samples: int = 8, **chosen: Any) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    chosen = {"engine": EngineSettings(kind="scripted"), **chosen}
    settings = SampleSettings(samples_per_prompt=samples, **chosen)
    return dict(distill.body(out, problems, settings=settings, seed=0))


def samples(out: Path) -> list[Sample]:
    return list(read_table(out / "samples.parquet", Sample))


def ids(problems: Artifact) -> list[str]:
    return list(dict.fromkeys(p.id for p in kept_in(problems.folder)))


def test_every_problem_is_answered_n_times_in_the_order_of_the_problems(tmp_path, problems, hire):
    hire()
    metrics = run(tmp_path / "o", problems)
    got = [(s.problem_id, s.index) for s in samples(tmp_path / "o")]
    assert got == [(p, i) for p in ids(problems) for i in range(8)]
    assert (metrics["samples"], metrics["tokens"]) == (32, 3200)
    assert metrics["problems_without_answer"] == 0
    assert "cost" not in metrics
    run(tmp_path / "named", problems, sources=("s1",))
    assert {s.problem_id for s in samples(tmp_path / "named")} == set(ids(problems)[1::2])
    with pytest.raises(ValueError, match="sources=s9 names no problem"):
        run(tmp_path / "unknown", problems, sources=("s9",))


def test_the_weights_of_a_local_folder_are_read_and_what_its_engine_says_is_the_error(
    tmp_path, problems
):
    weights = tmp_path / "mine" / "model.safetensors"
    weights.parent.mkdir()
    weights.touch()
    for kind in ("transformers", "vllm"):
        engine = EngineSettings(kind=kind, model=str(weights.parent))
        assert recorded_files(SampleSettings(engine=engine)) == [("model.safetensors", weights)]
    of_the_hub = engine.model_copy(update={"model": "Qwen/Qwen3-8B"})
    assert recorded_files(SampleSettings(engine=of_the_hub)) == []
    engine = EngineSettings(kind="transformers", model=str(tmp_path / "nothing"))
    with pytest.raises(EngineError, match=r"^engine model=.*nothing cannot be loaded") as caught:
        run(tmp_path / "o", problems, engine=engine)
    assert "\n" not in str(caught.value)  # no traceback


def test_truncated_empty_refused_and_failed_answers_are_counted_and_paid(tmp_path, problems, hire):
    hire(ends=("length", "empty", "refused", "error"))
    priced = EngineRuntime(input_price=1.0, output_price=2.0)
    engine = EngineSettings(kind="scripted", runtime=priced)
    metrics = run(tmp_path / "o", problems, engine=engine)
    ways = ("truncated", "empty", "refused", "errors")
    assert {n: metrics[n] for n in ways} == dict.fromkeys(ways, 8)
    assert metrics["cost"] == pytest.approx(32 * (10 * 1.0 + 100 * 2.0) / 1e6)


def test_problems_without_a_recording_and_unusable_recordings_are_rejected_by_name(tmp_path):
    rows = {"question": "Q1", "response": "a", "ok": True}, {"question": "q2"}
    file, one, two = jsonl(tmp_path / "r.jsonl", *rows), math_problem("q1"), math_problem("q2")
    engine = EngineSettings(kind="recorded", files=(str(file),), grade_field="ok", model="m")
    metrics = run(tmp_path / "o", folder_with(tmp_path, kept=[one, two]), 2, engine=engine)
    assert [(s.problem_id, s.index) for s in samples(tmp_path / "o")] == [(one.id, 0)]
    assert [(r.id, r.reason) for r in rejected_in(tmp_path / "o")] == [
        (two.id, "the recorded engine has no answer to this prompt"),
        ("", "r.jsonl row 2: field response: missing"),
    ]
    assert metrics["problems_without_answer"] == 1
    (grade,) = read_table(tmp_path / "o" / "grades.parquet", Grade)
    assert (grade.problem_id, grade.index, grade.correct) == (one.id, 0, True)


def test_local_engines_get_a_job_once(tmp_path, problems, monkeypatch):
    jobs = []

    def child(job, out: Path) -> dict[str, float]:
        jobs.append(job)
        with Journal(journal_path(out)) as journal, job.requests.open() as lines:
            for line in lines:
                journal.append(Request(**json.loads(line)).answered("m", "t"))
        return {"tokens_per_second": 1.0}

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
    assert len(teacher.answered) == len(set(teacher.answered))


PROBLEMS = [math_problem(f"p{i}") for i in range(40)]
TOKENS = {p.id: 1_000 * (1 + i // 4 % 2) for i, p in enumerate(PROBLEMS)}  # 1,500 on average
PRICE = 1_000.0  # per million tokens: an answer of 1,000 tokens costs 1


@pytest.fixture
def costly(tmp_path, monkeypatch, hire) -> tuple[Artifact, Teacher]:
    """Forty problems, of which ten make up the pilot, and who answers them."""
    monkeypatch.setattr("klear.tasks.answers.distill.PILOT_PROMPTS", 10)
    return folder_with(tmp_path, kept=PROBLEMS), hire(tokens=dict(TOKENS))


def spend(out: Path, problems: Artifact, **budget: float | None) -> dict[str, float]:
    """Two answers a problem: 80 answers that cost 120."""
    runtime = EngineRuntime.model_validate({"output_price": PRICE, **budget})
    return run(out, problems, 2, engine=EngineSettings(kind="scripted", runtime=runtime))


def test_above_the_set_cost_the_pilot_alone_is_asked_and_nothing_is_paid_twice(tmp_path, costly):
    problems, teacher = costly
    with pytest.raises(NeedsApproval) as refused:
        spend(tmp_path / "o", problems, approve_above=100)
    # Every fourth problem is in the pilot: half of them cost 1, half 2.
    costs = teacher.costs()
    assert len(costs) == 10
    mean = sum(costs) / 10
    spread = 1.96 * math.sqrt(sum((c - mean) ** 2 for c in costs) / 9 / 10)
    assert refused.value.args[2] == math.ceil(80 * (mean + spread))
    assert f"80 answers would cost about {80 * mean:,.2f}" in str(refused.value)
    assert f"--approve-cost {refused.value.args[2]}" in str(refused.value)
    assert "\n" not in str(refused.value)
    metrics = spend(tmp_path / "o", problems, approve_above=10, approved_cost=500)
    assert metrics["samples"] == len(teacher.answered) == len(set(teacher.answered)) == 80
    assert metrics["cost"] == pytest.approx(120)
    # A kill between the last answer and the end of the stage: nothing is left to approve.
    (tmp_path / "o" / "samples.parquet").unlink()
    again = spend(tmp_path / "o", problems, approve_above=10)
    assert again["samples"] == len(teacher.answered) == 80


def test_where_answers_cost_more_than_the_pilot_asking_stops_at_the_limit(tmp_path, costly):
    problems, teacher = costly
    pilot = {r.problem_id for r in pilot_of(requests_of(PROBLEMS, 2, 0), 10)}
    teacher.tokens = {p.id: 500 if p.id in pilot else 5_000 for p in PROBLEMS}
    with pytest.raises(NeedsApproval, match="answers have cost"):
        spend(tmp_path / "o", problems, approve_above=100)
    assert 100 <= sum(teacher.costs()) < 100 + 5  # one answer may pass the line
    spend(tmp_path / "o", problems, approve_above=100, approved_cost=1_000)
    assert len(teacher.answered) == 80


def test_a_gate_needs_prices_and_who_approves_reads_of_when_those_of_the_catalogue_are(
    tmp_path, costly
):
    problems, teacher = costly
    with pytest.raises(ValueError, match=r"needs prices: set engine\.runtime\.input_price"):
        spend(tmp_path, problems, approve_above=1.0, output_price=None)
    assert not teacher.answered
    engine = {"kind": "openai", "model": "deepseek-ai/DeepSeek-R1", "api_key_env": ""}
    engine |= {"base_url": "https://api.together.ai/v1", "runtime": {"approve_above": 0.1}}
    with pytest.raises(NeedsApproval, match=r"the catalogue: USD, .*together\.ai, 2026-"):
        run(tmp_path / "o", problems, 2, engine=EngineSettings.model_validate(engine))
    assert len(teacher.answered) == 10
