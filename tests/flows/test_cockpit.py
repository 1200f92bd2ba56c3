"""What a person does in the Prefect UI: start, refuse, cancel, kill, retry, queue, be told.

Buttons are the API calls that the UI makes; tests/browser presses them in Chromium.
"""

import json
import os
import signal
import time
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from told import children_of, missing_in_mlflow, missing_in_prefect

LONG = 600  # seconds; for a machine on which everything else runs as well
MINUTE = 60
Eventually = Callable[..., bool]


@pytest.fixture(scope="module")
def dead(cockpit: Any, eventually: Eventually) -> str:
    """A run from the command line that was killed: nobody tells Prefect. Its flow run's id."""
    process = cockpit.start("--seed", "9", "--until", "base")
    assert eventually(lambda: cockpit.named("small-seed9"), LONG)
    (run,) = cockpit.named("small-seed9")
    assert eventually(lambda: cockpit.run(run["id"])["state_type"] == "RUNNING", LONG)
    assert eventually(lambda: any(cockpit.store.glob("collect/*")), LONG)  # it beats by then
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for ledger in (cockpit.store / ".runs").glob("*.json"):
        ledger.unlink()  # from it the next start would know, before the automation does
    return run["id"]


@pytest.fixture(scope="module")
def data(cockpit: Any, dead: str) -> str:
    """Everything up to the base model, by the command line: what it printed."""
    printed = cockpit.klear("run", str(cockpit.profile), "--until", "base").stdout
    _beats_late(cockpit, cockpit.named("small-seed0")[0]["id"])
    return printed


def _beats_late(cockpit: Any, run: str) -> None:
    """A sign of life that arrives after the end, as after an outage."""
    resource = {"prefect.resource.id": f"prefect.flow-run.{run}"}
    now = datetime.now(UTC).isoformat()
    beat = {"event": "prefect.flow-run.heartbeat", "resource": resource, "occurred": now}
    cockpit.call("events", [{**beat, "id": str(uuid4())}])


def test_a_stage_from_its_form_finds_what_the_command_line_made(cockpit: Any, data: str) -> None:
    assert "✓ select" in data
    run = cockpit.ended(cockpit.submit("small-select"))
    assert run["state_name"] == "Completed"
    assert run["name"] == "small-seed0 · select"
    assert cockpit.task_runs(run["id"]) == {"select": ["Cached"]}
    assert len(list(cockpit.store.glob("select/*"))) == 1


def test_a_bad_value_is_refused_with_the_name_of_its_field(cockpit: Any) -> None:
    settings = cockpit.form("small-sft")["settings"]
    before = cockpit.count()
    with pytest.raises(urllib.error.HTTPError) as refused:
        cockpit.submit("small-sft", settings={**settings, "learning_rate": -1.0})
    assert "settings.learning_rate" in refused.value.read().decode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        cockpit.submit("small-sft", inputs={"base": "newest", "select": "latest"})
    assert "inputs.base" in refused.value.read().decode()
    assert cockpit.count() == before


def test_an_input_that_is_not_there_fails_before_anything_starts(cockpit: Any, data: str) -> None:
    run = cockpit.submit("small-sft", inputs={"base": "abcdef", "select": "latest"})
    message = cockpit.ended(run)["state"]["message"]
    assert "inputs.base: there is no base/abcdef" in message
    assert cockpit.task_runs(run) == {}


def test_killed_then_retried_then_cancelled_then_run_again_is_one_training(
    cockpit: Any, data: str, told: tuple[str, list[str]], eventually: Eventually
) -> None:
    run = cockpit.submit("small-sft")
    checkpoints = ".work/sft/*/.resume/checkpoints/checkpoint-*"
    assert eventually(lambda: any(cockpit.store.glob(checkpoints)), LONG)
    (engine,) = cockpit.engines()
    os.kill(engine, signal.SIGKILL)
    assert cockpit.ended(run)["state_name"] == "Crashed"
    assert eventually(lambda: not cockpit.children(), 120), "the child outlives its run"
    _told_of(cockpit.run(run)["name"], "Crashed", told[1], eventually)

    cockpit.set_state(run, "SCHEDULED", "AwaitingRetry")
    assert eventually(cockpit.children, LONG)
    assert cockpit.run(run)["run_count"] == 2
    cockpit.set_state(run, "CANCELLING", "Cancelling")
    began = time.monotonic()
    assert eventually(lambda: not cockpit.children() and not cockpit.engines(), 120)
    print(f"process tree gone after {time.monotonic() - began:.1f} s")
    assert cockpit.ended(run, LONG)["state_name"] == "Cancelled"
    assert "Running" not in {s for states in cockpit.task_runs(run).values() for s in states}

    again = cockpit.submit("small-sft")
    assert cockpit.ended(again, LONG)["state_name"] == "Completed"
    _one_training(cockpit)


def _one_training(cockpit: Any) -> None:
    """One MLflow run, with every step once, whatever became of its processes."""
    experiment = cockpit.mlflow.get_experiment_by_name("klear-small").experiment_id
    (child,) = cockpit.mlflow.search_runs([experiment], "tags.`klear.stage` = 'sft'")
    parent = cockpit.mlflow.get_run(child.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["klear.kind"] == "stage"
    history = cockpit.mlflow.get_metric_history(child.info.run_id, "step")
    steps = sorted(m.step for m in history)
    assert len(steps) == len(set(steps)), "a step was logged twice"
    assert steps == list(range(steps[0], steps[-1] + 1, steps[1] - steps[0])), "a step is missing"


def _told_of(name: str, state: str, posts: list[str], eventually: Eventually) -> None:
    def texts() -> list[str]:
        return [json.loads(post)["text"] for post in posts]

    begins = f"klear {name}: "  # another run's name may begin with this one
    assert eventually(lambda: any(t.startswith(begins) for t in texts()), 120), posts
    (text,) = [t for t in texts() if t.startswith(begins)]
    assert state in text
    assert "/runs/flow-run/" in text


def test_a_stage_waits_for_the_gpu_and_a_dead_holder_blocks_it_a_minute_at_most(
    cockpit: Any, data: str, eventually: Eventually
) -> None:
    lease_s = 60  # what a holder asks for; it renews it while it lives, and this one does not
    slot = {"names": ["klear-gpu"], "slots": 1, "mode": "concurrency", "lease_duration": lease_s}
    taken = time.monotonic()
    cockpit.call("v2/concurrency_limits/increment-with-lease", slot)
    run = cockpit.submit("small-base", seed=1)
    assert cockpit.ended(run)["state_name"] == "Completed"
    assert time.monotonic() - taken > lease_s
    limits = cockpit.call("v2/concurrency_limits/filter", {})
    (gpu,) = [x for x in limits if x["name"] == "klear-gpu"]
    assert (gpu["limit"], gpu["active_slots"]) == (1, 0)


def test_a_run_from_the_command_line_is_cancelled_from_the_ui(
    cockpit: Any, data: str, eventually: Eventually
) -> None:
    process = cockpit.start("--seed", "5", "--until", "base")
    assert eventually(cockpit.jobs, LONG)
    (run,) = cockpit.named("small-seed5")
    cockpit.set_state(run["id"], "CANCELLING", "Cancelling")
    output, _ = process.communicate(timeout=LONG)
    assert process.returncode == 1
    assert "cancelled in the Prefect UI" in output
    assert cockpit.run(run["id"])["state_name"] == "Cancelled"
    assert not cockpit.children()


def test_a_run_without_a_sign_of_life_is_buried(cockpit: Any, dead: str) -> None:
    state = cockpit.ended(dead, LONG)["state"]
    assert state["name"] == "Crashed"
    assert f"no sign of life for {cockpit.zombie_minutes} minutes" in state["message"]
    names = {a["name"] for a in cockpit.call("automations/filter", {})}
    assert names == {"klear: bury runs that died", "klear: tell of failures"}


def test_a_sign_of_life_that_arrives_after_the_end_changes_no_state(
    cockpit: Any, data: str, eventually: Eventually
) -> None:
    (run,) = (run["id"] for run in cockpit.named("small-seed0"))
    concerns = {"related": {"id": [f"prefect.flow-run.{run}"]}}
    asked = {"filter": {"event": {"name": ["prefect.automation.action.failed"]}, **concerns}}
    assert eventually(lambda: cockpit.call("events/filter", asked)["events"], LONG)
    (refused,) = cockpit.call("events/filter", asked)["events"]
    assert "already in terminal state COMPLETED" in refused["payload"]["reason"]
    assert cockpit.run(run)["state_name"] == "Completed"


@pytest.mark.timeout(4 * LONG)
def test_both_servers_are_away_for_a_minute_and_runs_go_on_and_nothing_is_missing(
    cockpit: Any, data: str, eventually: Eventually
) -> None:
    """One run from a form, which trains meanwhile, and one from the command line behind it."""
    settings = cockpit.form("small-sft")["settings"]
    seed = next(n for n in range(20, 90) if not cockpit.named(f"small-seed{n}"))  # of no other try
    from_form = cockpit.submit("small-sft", settings={**settings, "epochs": 12}, seed=seed)
    before = _steps(cockpit.store)
    assert eventually(lambda: _steps(cockpit.store) > before, LONG)
    command = cockpit.start("--seed", str(seed), "--until", "base")
    assert eventually(lambda: cockpit.named(f"small-seed{seed}"), LONG)

    pids, at_first, began = cockpit.servers(), _steps(cockpit.store), time.monotonic()
    for name in ("prefect", "mlflow"):
        os.kill(pids[name], signal.SIGKILL)
    assert eventually(lambda: _steps(cockpit.store) >= at_first + 10, LONG), "it does not go on"
    time.sleep(max(0.0, MINUTE - (time.monotonic() - began)))
    cockpit.klear("up")
    assert cockpit.servers()["worker"] == pids["worker"], "the worker did not outlive them"

    assert cockpit.ended(from_form, LONG)["state_name"] == "Completed"
    output, _ = command.communicate(timeout=LONG)
    assert command.returncode == 0, output
    (typed,) = (run["id"] for run in cockpit.named(f"small-seed{seed}"))
    assert cockpit.run(typed)["state_name"] == "Completed"
    marks = {"✓": "Completed", "=": "Cached"}
    words = [line.split() for line in output.splitlines() if line[:1] in marks]
    stages = {stage: marks[mark] for mark, stage, *_ in words}
    assert stages["base"] == "Completed"
    for run, wanted in ((from_form, {"sft": "Completed"}), (typed, stages)):
        eventually(
            lambda run=run, wanted=wanted: not missing_in_prefect(cockpit, run, wanted), LONG
        )
        assert not missing_in_prefect(cockpit, run, wanted), cockpit.words()
        assert not missing_in_mlflow(cockpit, run, cockpit.store)
        computed = {stage for stage, state in wanted.items() if state == "Completed"}
        assert children_of(cockpit, run).keys() == computed


def _steps(store: Path) -> int:
    """Lines of the curves of every SFT, done or under way."""
    count = 0
    for folder in (store / "sft", store / ".work" / "sft"):
        for path in folder.glob("*/logs/metrics.jsonl"):
            with suppress(FileNotFoundError):  # it is being published
                count += len(path.read_text().splitlines())
    return count


def test_the_address_of_the_webhook_is_in_no_page_and_no_log(
    cockpit: Any, told: tuple[str, list[str]]
) -> None:
    secret = told[0].rpartition("/")[2]
    for log in (cockpit.home / "logs").glob("*.log"):
        assert secret not in log.read_text(errors="replace"), log
    blocks = cockpit.call("block_documents/filter", {})
    assert secret not in json.dumps(blocks)
    assert secret not in json.dumps(cockpit.call("automations/filter", {}))


def test_forms_that_are_no_longer_made_go_and_those_of_others_stay(cockpit: Any) -> None:
    """The last one: it changes the forms."""
    assert {"small-sft", "tiny"} <= cockpit.forms()
    flow = cockpit.call("flows/", {"name": "klear-stage"})["id"]
    cockpit.call("deployments/", {"name": "small-of-somebody-else", "flow_id": flow})
    before = cockpit.forms()
    cockpit.registers("tiny")
    gone = {form for form in before if form.startswith("small-")} - {"small-of-somebody-else"}
    assert before - cockpit.forms() == gone
    assert "tiny-sft" in cockpit.forms()
