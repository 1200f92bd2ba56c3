"""The budget gate: a pilot, an estimate, and no money beyond what was approved."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from eval.records import Problem, Sample
from eval.tables import read_table, write_table
from tasks.answers import asking
from tasks.answers.asking import Plan
from tasks.answers.budget import NeedsApproval, pilot_of
from tasks.answers.distill import distill
from tasks.store.store import Artifact
from training.engines.interface import Request

PROBLEMS = [Problem(domain="math", prompt=f"p{i}", answer="1", source="s") for i in range(40)]
TOKENS = {p.id: 1_000 * (1 + i // 4 % 2) for i, p in enumerate(PROBLEMS)}  # 1,500 on average
PRICE = 1_000.0  # per million tokens: an answer of 1,000 tokens costs 1


class Paid:
    """Answers of known length; `asked` counts over all runs."""

    asked: list[Request]

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Paid":
        return self

    def __exit__(self, *_: object) -> None: ...

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        for r in requests:
            Paid.asked.append(r)
            yield Sample(problem_id=r.problem_id, index=r.index, model="m", text="t",
                         completion_tokens=TOKENS[r.problem_id])  # fmt: skip


@pytest.fixture
def problems(tmp_path, monkeypatch) -> Artifact:
    folder = tmp_path / "problems"
    folder.mkdir()
    write_table(folder / "kept.parquet", Problem, PROBLEMS)
    Paid.asked = []
    monkeypatch.setattr(asking, "make_engine", Paid)
    return Artifact.of_folder(folder)


def run(out: Path, problems: Artifact, **budget: float) -> dict[str, float]:
    """Two answers a problem: 80 answers that cost 120."""
    out.mkdir(exist_ok=True)
    runtime = EngineRuntime(output_price=PRICE, pilot_prompts=10, **budget)  # type: ignore[arg-type]
    settings = SampleSettings(
        samples_per_prompt=2,
        engine=EngineSettings(kind="scripted", runtime=runtime),
    )
    return dict(distill.body(out, problems, settings=settings, seed=0))


def test_above_the_set_cost_nothing_but_the_pilot_is_asked(tmp_path, problems):
    with pytest.raises(NeedsApproval) as refused:
        run(tmp_path / "o", problems, approve_above=100)
    assert len(Paid.asked) == 10
    # Every fourth problem is in the pilot: half of them cost 1, half 2.
    costs = [TOKENS[r.problem_id] * PRICE / 1e6 for r in Paid.asked]
    mean = sum(costs) / 10
    spread = 1.96 * math.sqrt(sum((c - mean) ** 2 for c in costs) / 9 / 10)
    assert refused.value.wanted == math.ceil(80 * (mean + spread))
    assert f"80 answers would cost about {80 * mean:,.2f}" in str(refused.value)
    assert f"--approve-cost {refused.value.wanted}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_was_approved_is_spent_and_the_pilot_is_not_paid_twice(tmp_path, problems):
    with pytest.raises(NeedsApproval):
        run(tmp_path / "o", problems, approve_above=10)
    metrics = run(tmp_path / "o", problems, approve_above=10, approved_cost=500)
    assert metrics["samples"] == len(Paid.asked) == 80
    assert len({(r.problem_id, r.index) for r in Paid.asked}) == 80
    assert metrics["cost"] == pytest.approx(120)
    assert metrics["cost/s"] == metrics["cost"]


def test_when_every_answer_is_on_file_nothing_needs_approval(tmp_path, problems):
    """A kill between the last answer and the end of the stage: nothing is left to buy."""
    run(tmp_path / "o", problems, approve_above=10, approved_cost=500)
    (tmp_path / "o" / "samples.parquet").unlink()
    assert run(tmp_path / "o", problems, approve_above=10)["samples"] == len(Paid.asked) == 80


def test_below_the_set_cost_nobody_is_asked(tmp_path, problems):
    assert run(tmp_path / "o", problems, approve_above=200)["samples"] == 80


def test_when_answers_cost_more_than_the_pilot_said_asking_stops_at_what_is_allowed(
    tmp_path, problems, monkeypatch
):
    pilot = pilot_of(Plan(PROBLEMS, range(2), 0), 10)
    for p in PROBLEMS:
        monkeypatch.setitem(TOKENS, p.id, 500 if p in pilot.problems else 5_000)
    with pytest.raises(NeedsApproval, match="answers have cost"):
        run(tmp_path / "o", problems, approve_above=100)
    spent = sum(TOKENS[r.problem_id] * PRICE / 1e6 for r in Paid.asked)
    assert 100 <= spent < 100 + 5  # one answer may pass the line
    run(tmp_path / "o", problems, approve_above=100, approved_cost=1_000)
    assert len(Paid.asked) == 80


def test_a_gate_without_prices_is_refused_before_anything_is_asked(tmp_path, problems):
    runtime = EngineRuntime(approve_above=1.0)
    settings = SampleSettings(engine=EngineSettings(kind="scripted", runtime=runtime))
    with pytest.raises(ValueError, match=r"needs prices: set engine\.runtime\.input_price"):
        distill.body(tmp_path, problems, settings=settings, seed=0)
    assert not Paid.asked


def test_the_pilot_is_spread_over_the_problems():
    plan = Plan(PROBLEMS, range(16), 0)
    assert [r.prompt for r in pilot_of(plan, 4)] == ["p0", "p10", "p20", "p30"]
    assert len(pilot_of(plan, 1_000)) == 40


def test_a_plan_makes_its_requests_when_they_are_asked_for():
    plan = Plan(PROBLEMS, range(3), seed=5)
    assert len(plan) == 120
    assert list(plan) == [plan[i] for i in range(120)]
    assert list(plan.sample_keys()) == [(r.problem_id, r.index) for r in plan]
    assert len({r.seed for r in plan}) == 120
    with pytest.raises(IndexError):
        plan[120]


def test_the_budget_does_not_change_the_key_of_the_stage():
    from configs.settings.base import key_of

    runtime = EngineRuntime(approve_above=1.0, approved_cost=9.0)
    gate, none = (EngineSettings(kind="scripted", runtime=r) for r in (runtime, EngineRuntime()))
    assert key_of(SampleSettings(engine=gate)) == key_of(SampleSettings(engine=none))


def test_curves_of_tokens_and_cost_are_written_while_answers_come(tmp_path, problems):
    run(tmp_path / "o", problems)
    import json

    lines = (tmp_path / "o" / "logs" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["step"] == 80
    assert last["metrics"]["generated/tokens"] == sum(TOKENS.values()) * 2
    assert last["metrics"]["generated/cost"] == pytest.approx(120)
    assert len(list(read_table(tmp_path / "o" / "samples.parquet", Sample))) == 80
