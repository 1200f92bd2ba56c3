"""Asking an engine: a pilot, an estimate, no money beyond what was approved; whose key it is."""

import math
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from configs.settings.base import key_of
from configs.settings.data import SampleSettings
from configs.settings.engines import EngineRuntime, EngineSettings
from eval.records import Problem, Sample
from eval.tables import write_table
from tasks.answers.distill import NeedsApproval, Plan, distill, pilot_of
from tasks.store.store import Artifact
from training.engines import generate
from training.engines.interface import Key, Request

ROOT = Path(__file__).resolve().parents[2]
PROBLEMS = [Problem(domain="math", prompt=f"p{i}", answer="1", source="s") for i in range(40)]
TOKENS = {p.id: 1_000 * (1 + i // 4 % 2) for i, p in enumerate(PROBLEMS)}  # 1,500 on average
PRICE = 1_000.0  # per million tokens: an answer of 1,000 tokens costs 1
KEY = "sk-from-a-block-42"


class Paid(nullcontext["Paid"]):
    """Answers of known length; `asked` counts over all runs."""

    asked: list[Request]

    def __init__(self, *_: object) -> None:
        super().__init__(self)

    def answer(
        self, requests: Iterable[Request], finished: Container[Key] = ()
    ) -> Iterator[Sample]:
        for r in requests:
            if r.key not in finished:
                Paid.asked.append(r)
                yield r.answered("m", "t", completion_tokens=TOKENS[r.problem_id])


@pytest.fixture
def problems(tmp_path, monkeypatch) -> Artifact:
    write_table(tmp_path / "kept.parquet", Problem, PROBLEMS)
    Paid.asked = []
    monkeypatch.setattr(generate, "make_engine", Paid)
    monkeypatch.setattr("tasks.answers.distill.PILOT_PROMPTS", 10)
    return Artifact.of_folder(tmp_path)


def run(out: Path, problems: Artifact, **budget: float | None) -> dict[str, float]:
    """Two answers a problem: 80 answers that cost 120."""
    out.mkdir(exist_ok=True)
    runtime = EngineRuntime.model_validate({"output_price": PRICE, **budget})
    settings = SampleSettings(
        samples_per_prompt=2, engine=EngineSettings(kind="scripted", runtime=runtime)
    )
    return dict(distill.body(out, problems, settings=settings, seed=0))


def test_above_the_set_cost_nothing_but_the_pilot_is_asked(tmp_path, problems):
    with pytest.raises(NeedsApproval) as refused:
        run(tmp_path / "o", problems, approve_above=100)
    # Every fourth problem is in the pilot: half of them cost 1, half 2.
    costs = [TOKENS[r.problem_id] * PRICE / 1e6 for r in Paid.asked]
    assert len(costs) == 10
    mean = sum(costs) / 10
    spread = 1.96 * math.sqrt(sum((c - mean) ** 2 for c in costs) / 9 / 10)
    assert refused.value.wanted == math.ceil(80 * (mean + spread))
    assert f"80 answers would cost about {80 * mean:,.2f}" in str(refused.value)
    assert f"--approve-cost {refused.value.wanted}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_was_approved_is_spent_and_nothing_is_paid_twice(tmp_path, problems):
    with pytest.raises(NeedsApproval):
        run(tmp_path / "o", problems, approve_above=10)
    metrics = run(tmp_path / "o", problems, approve_above=10, approved_cost=500)
    assert metrics["samples"] == len(Paid.asked) == 80
    assert len({r.key for r in Paid.asked}) == 80
    assert metrics["cost"] == metrics["cost/s"] == pytest.approx(120)
    # A kill between the last answer and the end of the stage: nothing is left to approve.
    (tmp_path / "o" / "samples.parquet").unlink()
    assert run(tmp_path / "o", problems, approve_above=10)["samples"] == len(Paid.asked) == 80


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
    with pytest.raises(ValueError, match=r"needs prices: set engine\.runtime\.input_price"):
        run(tmp_path, problems, approve_above=1.0, output_price=None)
    assert not Paid.asked


def test_the_budget_does_not_change_the_key_of_the_stage():
    runtime = EngineRuntime(approve_above=1.0, approved_cost=9.0)
    gate, none = (EngineSettings(kind="scripted", runtime=r) for r in (runtime, EngineRuntime()))
    assert key_of(SampleSettings(engine=gate)) == key_of(SampleSettings(engine=none))


SCRIPT = f"""
from prefect.testing.utilities import prefect_test_harness
from configs.settings.engines import EngineSettings
from tasks.answers.distill import api_key
from training.engines.interface import EngineError
with prefect_test_harness(server_startup_timeout=150):
    from prefect.blocks.system import Secret
    Secret(value={KEY!r}).save("teacher-key")
    engine = EngineSettings(kind="openai", model="m", base_url="http://127.0.0.1/v1",
                            api_key_block="teacher-key")
    print(api_key(engine))
    print(engine.model_dump_json())
    try:
        api_key(engine.model_copy(update={{"api_key_block": "missing"}}))
    except EngineError as error:
        print("refused:", error)
"""


@pytest.mark.system
def test_the_key_comes_from_the_named_block_and_settings_hold_its_name_only():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, settings, refused = done.stdout.strip().splitlines()[-3:]
    assert found == KEY
    assert KEY not in settings
    assert "teacher-key" in settings
    assert refused.startswith("refused: the Prefect Secret block 'missing' cannot be read")
    assert "api_key_env" in refused


@pytest.mark.parametrize("url", ["http://user:word@host/v1", "https://host/v1?key=abc", "host/v1"])
def test_a_url_that_holds_a_secret_or_is_none_is_refused(url):
    with pytest.raises(ValueError, match="base_url"):
        EngineSettings(kind="openai", model="m", base_url=url)
