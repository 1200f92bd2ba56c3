"""The budget gate as people meet it: a form, a worker, a paused run and its Resume form."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from home import Home, eventually

from klear.eval.records import Sample
from klear.eval.tables import read_table
from klear.tasks.answers.distill import PILOT_PROMPTS as PILOT
from tests.endpoint.conftest import MODEL, Endpoint, serving

pytestmark = pytest.mark.system

SAMPLES = 2


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(latency_s=0.1) as running:
        yield running


@pytest.fixture
def paused(cockpit: Home, first: str, endpoint: Endpoint, request: pytest.FixtureRequest) -> str:
    """A distillation that has come to its pause, with as many samples a prompt as no other."""
    runtime = {"output_price": 1000.0, "approve_above": 0.5}
    engine = {"kind": "openai", "model": MODEL, "base_url": endpoint.url, "runtime": runtime}
    lines = (f"samples_per_prompt={request.param}", f"engine={json.dumps(engine)}",
             "engine.api_key_env=''")  # fmt: skip
    changes = "\n".join(f"distill.{line}" for line in lines)
    run = cockpit.submit("stage", profile="small", stage="distill", changes=changes)
    waits(cockpit, run)
    return run


def waits(cockpit: Home, run: str) -> None:
    """Until it is paused; it must not end before."""
    assert eventually(lambda: cockpit.flow_run(run)["state_type"] == "PAUSED" or
                      cockpit.has_ended(run))  # fmt: skip
    assert cockpit.flow_run(run)["state_type"] == "PAUSED", cockpit.log(run)


def shows(cockpit: Home, run: str, *states: str) -> None:
    """Until its `distill` tasks are in these states; Prefect tells them in its own time."""
    assert eventually(lambda: cockpit.states(run) == {"distill": [*states]}), cockpit.states(run)


def form(cockpit: Home, run: str) -> tuple[dict[str, Any], str]:
    """Fields and description of the form behind the button Resume, as the UI reads them."""
    keys = cockpit.flow_run(run)["state"]["state_details"]["run_input_keyset"]
    paths = (f"flow_runs/{run}/input/{keys[name]}" for name in ("schema", "description"))
    schema, about = map(cockpit.call, paths)
    return schema["properties"], about


def resume(cockpit: Home, run: str, **answer: object) -> None:
    cockpit.call(f"flow_runs/{run}/resume", {"run_input": answer})


@pytest.mark.parametrize("paused", [SAMPLES], indirect=True)
def test_a_paused_run_goes_on_where_it_was_when_its_form_is_filled_in(cockpit, endpoint, paused):
    shows(cockpit, paused, "WaitingForApproval")
    assert endpoint.attempts.total() == PILOT  # nothing but the pilot has been paid for
    fields, about = form(cockpit, paused)
    titles = [field["title"] for field in fields.values()]
    assert titles == ["Spend It", "Cost That May Be Spent"]
    assert fields["spend_it"]["default"] is False
    assert re.match(r"\*\*distill\*\*: \d+ answers would cost about", about)
    cost = fields["cost_that_may_be_spent"]["default"]  # what the form proposes is enough
    resume(cockpit, paused, spend_it=True, cost_that_may_be_spent=0.6)
    assert eventually(lambda: len(cockpit.states(paused)["distill"]) == 2)
    waits(cockpit, paused)  # too little: it asks again
    assert endpoint.attempts.total() == PILOT
    resume(cockpit, paused, spend_it=True, cost_that_may_be_spent=cost)
    assert cockpit.ended(paused)["state_name"] == "Completed"
    shows(cockpit, paused, "Approved", "Approved", "Completed")
    assert set(endpoint.attempts.values()) == {SAMPLES}
    newest = max(cockpit.store.glob("distill/*/samples.parquet"), key=lambda p: p.stat().st_mtime)
    keys = [(s.problem_id, s.index) for s in read_table(newest, Sample)]
    assert len(keys) == len(set(keys)) == endpoint.attempts.total()


@pytest.mark.parametrize("paused", [SAMPLES + 1], indirect=True)
def test_a_refusal_fails_the_run_with_one_line_and_keeps_what_the_pilot_has_paid_for(
    cockpit: Home, endpoint: Endpoint, paused: str
) -> None:
    resume(cockpit, paused, spend_it=False, cost_that_may_be_spent=0)
    message = cockpit.ended(paused)["state"]["message"]
    assert re.search(r"NeedsApproval: \d+ answers would cost about", message)
    assert "0.50 may be spent without approval" in message
    assert "\n" not in message
    shows(cockpit, paused, "Refused")
    assert endpoint.attempts.total() == PILOT
    journals = cockpit.store.glob(".work/distill/*/.resume/samples.jsonl")
    newest = max(journals, key=lambda path: path.stat().st_mtime)
    assert len(newest.read_text().splitlines()) == PILOT
