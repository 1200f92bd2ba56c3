"""What a person does in the Prefect UI and the terminal: start, refuse, cancel, kill, retry, pay.

Buttons are the API calls that the UI makes; tests/browser presses them in Chromium.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import time
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from home import PATIENCE_S, ZOMBIE_MINUTES, Home, cached, computed, eventually

from klear.configs import metrics as catalogue
from klear.eval.records import Sample
from klear.eval.records.tables import read_table
from klear.flows.cockpit.registration import crash_silent
from klear.tasks.answers.distill import PILOT_PROMPTS as PILOT
from tests.endpoint.conftest import MODEL, Endpoint, serving

pytestmark = pytest.mark.system
MINUTE = 60
SAMPLES = 2


def of_small(cockpit: Home) -> dict[str, str]:
    """Of the first run."""
    return {"profile": str(cockpit.profile), "inputs_as_of": "small-seed0"}


@pytest.fixture(scope="session", autouse=True)
def dead(cockpit: Home) -> str:
    """A run from the command line that was killed: nobody tells Prefect. Its flow run's id. It goes
    before the first whole run, during which the minutes pass after which it is noticed."""
    process = cockpit.start("--seed", "9")
    assert eventually(lambda: cockpit.named("small-seed9"))
    (run,) = cockpit.named("small-seed9")
    resource = {"id": [f"prefect.flow-run.{run['id']}"]}
    beats = {"filter": {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": resource}}
    assert eventually(lambda: cockpit.call("events/filter", beats)["events"])
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for ledger in (cockpit.store / ".runs").glob("*.json"):
        ledger.unlink()  # from it the next start would know, before the automation does
    return run["id"]


def test_every_metric_that_a_run_logs_is_explained(cockpit: Home, first: str) -> None:
    logged = {name for run in cockpit.tracked("") for name in run.data.metrics}
    curves = {"sft/loss", "sft/entropy", "rl_math/reward/mean", "rl_code/reward/mean"}
    assert curves | {"countdown_test/avg", "accuracy/code", "kept", "seconds"} <= logged
    unknown = len(catalogue.metrics())
    assert not [name for name in sorted(logged) if catalogue.display_order(name) == unknown]
    (run,) = re.findall(r"runs/(\w+)\?", first)
    accuracy = cockpit.mlflow.get_metric_history(run, "countdown_test/avg")
    assert [point.step for point in accuracy] == [0, 1, 2, 3], "base, SFT, math RL, code RL"


def test_a_bad_value_is_refused_with_the_name_of_its_field(cockpit: Home, first: str) -> None:
    before = cockpit.call("flow_runs/count", {})
    with pytest.raises(urllib.error.HTTPError) as refused:
        cockpit.submit("small", sft_learning_rate=-1.0)
    assert "sft_learning_rate" in refused.value.read().decode()
    assert cockpit.call("flow_runs/count", {}) == before
    run = cockpit.submit("stage", profile=str(cockpit.profile), stage="sft", seed=4711)
    message = "no run of small with seed 4711 is complete (until its report); complete are: "
    assert message in cockpit.ended(run)["state"]["message"]
    worker = cockpit.servers()["worker"]
    cockpit.set_state(run, "SCHEDULED", "AwaitingRetry")  # while its process still ends
    assert eventually(lambda: cockpit.flow_run(run)["run_count"] == 2)
    assert message in cockpit.ended(run)["state"]["message"]
    assert message in cockpit.log(run)
    assert cockpit.states(run) == {}
    assert cockpit.servers()["worker"] == worker, "Retry ended the worker"


def test_a_stage_of_a_run_is_run_again_in_the_terminal(cockpit: Home, first: str) -> None:
    output = cockpit.klear("rerun", "small-seed0", "select", "--set", "select.balanced=true")
    assert "klear rerun small-seed0: select" in output
    (run,) = cockpit.named("select · select.balanced=true · as of small-seed0 · small-seed0")
    assert cockpit.states(run["id"]) == {"select": ["Completed"]}
    wrong = cockpit.command("rerun", "small-seed1", "select")
    assert "no run small-seed1 is complete (until its report)" in wrong.stderr
    assert "did you mean small-seed0?" in wrong.stderr


def test_a_stage_waits_for_the_gpu_and_a_run_for_its_turn_and_is_named_unless_it_was(
    cockpit: Home, first: str
) -> None:
    assert cockpit.call("work_pools/klear-local/queues/default")["concurrency_limit"] == 2
    assert {run["work_queue_name"] for run in cockpit.named("small-seed0")} == {"terminal"}
    name = "plan of report · as of small-seed0 · small-seed0"
    with (cockpit.home / "gpu" / "gpu-0.lock").open("a") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        typed = {"run_name": "second-try", "stage": "base", "seed": 72}
        held = cockpit.submit("stage", **typed, **of_small(cockpit))
        assert eventually(lambda: cockpit.states(held).get("base") == ["Running"])
        assert not cockpit.children()
        fields = {"run_name": "Fantastic-Alabai", "plan_only": True, **of_small(cockpit)}
        waiting = cockpit.submit("stage", **fields)
        assert eventually(lambda: cockpit.flow_run(waiting)["name"] == name)
        assert cockpit.flow_run(waiting)["state_type"] == "SCHEDULED"
    assert cockpit.ended(held)["state_name"] == "Completed"
    assert cockpit.flow_run(held)["name"] == "second-try"
    assert cockpit.ended(waiting)["state_name"] == "Completed"
    assert cockpit.artifacts(waiting) == {"klear-plan"}


def test_the_graph_of_a_run_has_the_edges_of_the_pipeline(cockpit: Home, first: str) -> None:
    run = max(cockpit.named("small-seed0"), key=lambda run: len(cockpit.tasks_of(run["id"])))
    tasks = {task["id"]: task for task in cockpit.tasks_of(run["id"])}

    def inputs(name: str) -> set[str]:
        (task,) = (t for t in tasks.values() if t["name"] == name)
        return {tasks[i["id"]]["name"] for i in task["task_inputs"].get("wait_for", ())}

    assert inputs("data: collect") == set()
    assert inputs("RL: rl_code") == {"RL: rl_math", "data: filter_rl"}
    assert inputs("evaluation: evaluate_sft") == {"SFT: sft", "data: benchmarks"}
    assert run["deployment_id"] == cockpit.deployment("small")["id"], "no run of its form"


def test_a_deleted_and_a_forced_stage_alone_are_computed_again(cockpit: Home, first: str) -> None:
    shutil.rmtree(next(cockpit.store.glob("rl_math/*")))
    output = cockpit.run("--force", "select")
    assert sorted(computed(output)) == ["rl_math", "select"]
    assert {"sft", "rl_code"} <= {*cached(output)}, "the same bytes were made again"


def test_killed_then_retried_then_cancelled_then_retried_is_one_training(
    cockpit: Home, first: str
) -> None:
    run = cockpit.submit("stage", stage="sft", seed=30, **of_small(cockpit))
    cockpit.hold_at_checkpoint("sft")
    (engine,) = cockpit.engines()
    os.kill(engine, signal.SIGKILL)
    assert cockpit.ended(run)["state_name"] == "Crashed"
    assert eventually(lambda: not cockpit.children(), 120), "the child outlives its run"

    cockpit.set_state(run, "SCHEDULED", "AwaitingRetry")
    cockpit.hold_at_checkpoint("sft")
    assert cockpit.flow_run(run)["run_count"] == 2
    cockpit.set_state(run, "CANCELLING", "Cancelling")
    assert eventually(lambda: not cockpit.children() and not cockpit.engines(), 120)
    assert cockpit.ended(run)["state_name"] == "Cancelled"
    assert "Running" not in {s for states in cockpit.states(run).values() for s in states}

    cockpit.set_state(run, "SCHEDULED", "AwaitingRetry")  # its worker cancelled this id before
    assert eventually(lambda: cockpit.flow_run(run)["run_count"] == 3)
    assert cockpit.ended(run)["state_name"] == "Completed"
    # one MLflow run, with every step once, whatever became of its processes
    manifests = (json.loads(p.read_text()) for p in cockpit.store.glob("sft/*/manifest.json"))
    (key,) = [m["key"] for m in manifests if m["seed"] == 30]
    (child,) = cockpit.tracked(f"tags.`klear.stage` = 'sft' and tags.`klear.key` = '{key}'")
    parent = cockpit.mlflow.get_run(child.data.tags["mlflow.parentRunId"])
    assert parent.data.tags["klear.kind"] == "stage"
    cockpit.check_steps(child.info.run_id)


def test_a_command_killed_then_cancelled_from_the_ui_goes_on_in_the_same_mlflow_run(
    cockpit: Home, first: str
) -> None:
    words = ("--seed", "1", "--until", "sft")

    def pipelines() -> list[str]:
        runs = cockpit.tracked("tags.`klear.kind` = 'pipeline' and tags.`klear.seed` = '1'")
        return [run.info.run_id for run in runs]

    killed = cockpit.start(*words)
    cockpit.hold_at_checkpoint("sft")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert eventually(lambda: not cockpit.children()), "orphans are left"
    before = pipelines()
    assert len(before) == 1

    cancelled = cockpit.start(*words)
    cockpit.hold_at_checkpoint("sft")  # it cannot be over before the button is pressed
    runs = cockpit.named("until sft · small-seed1")
    (run,) = [run["id"] for run in runs if run["state_type"] == "RUNNING"]
    cockpit.set_state(run, "CANCELLING", "Cancelling")
    output, _ = cancelled.communicate(timeout=PATIENCE_S)
    assert cancelled.returncode == 1
    assert "cancelled in the Prefect UI" in output
    assert cockpit.flow_run(run)["state_name"] == "Cancelled"
    assert not cockpit.children()

    output = cockpit.run(*words)
    assert any(line.split()[:2] == ["sft", "resuming"] for line in output.splitlines())
    assert pipelines() == before
    (sft,) = cockpit.stages_of(before[0], "sft")
    cockpit.check_steps(sft)


def test_a_run_without_a_sign_of_life_is_marked_crashed(cockpit: Home, dead: str) -> None:
    state = cockpit.ended(dead)["state"]
    assert state["name"] == "Crashed"
    assert f"no sign of life for {ZOMBIE_MINUTES} minutes" in state["message"]
    names = {a["name"] for a in cockpit.call("automations/filter", {})}
    assert names == {crash_silent(30).name}


@pytest.mark.timeout(4 * PATIENCE_S)
def test_both_servers_are_away_for_a_minute_and_runs_go_on_and_nothing_is_missing(cockpit, first):
    """One run from a form, which trains meanwhile, and one from the command line behind it."""
    seed = next(
        n for n in range(20, 90) if not cockpit.named(f"until base · small-seed{n}")
    )  # of no other try
    long = {"stage": "sft", "changes": "sft.epochs=36", "seed": seed}
    from_form = cockpit.submit("stage", **long, **of_small(cockpit))
    before = _steps(cockpit.store)
    assert eventually(lambda: _steps(cockpit.store) > before)
    command = cockpit.start("--seed", str(seed), "--until", "base")
    name = f"until base · small-seed{seed}"
    assert eventually(lambda: cockpit.named(name))
    (typed,) = (run["id"] for run in cockpit.named(name))
    assert eventually(lambda: cockpit.states(typed))  # a run that only begins fails at once

    pids, at_first, began = cockpit.servers(), _steps(cockpit.store), time.monotonic()
    for name in ("prefect", "mlflow"):
        os.kill(pids[name], signal.SIGKILL)
    assert eventually(lambda: _steps(cockpit.store) >= at_first + 10), "it does not go on"
    time.sleep(max(0.0, MINUTE - (time.monotonic() - began)))
    cockpit.klear("up")
    assert cockpit.servers()["worker"] == pids["worker"], "the worker did not outlive them"

    assert cockpit.ended(from_form)["state_name"] == "Completed"
    output, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, output
    assert cockpit.flow_run(typed)["state_name"] == "Completed"
    # Anywhere in a line: what Prefect says of a record that it cannot send ends without a new one.
    stages = dict.fromkeys(re.findall(r"✓ (\w+) ", output), "Completed")
    stages |= dict.fromkeys(cached(output), "Cached")
    assert stages["base"] == "Completed", output
    for run, wanted in ((from_form, {"sft": "Completed"}), (typed, stages)):
        shown = {name: [state] for name, state in wanted.items()}
        assert eventually(lambda: cockpit.states(run) == shown, 300)  # noqa: B023
        assert "klear-plan" in cockpit.artifacts(run)
        trained = {stage for stage, state in wanted.items() if state == "Completed"}
        _mlflow_has_all(cockpit, run, trained)
    # Its end comes after the outage; Prefect's client drops the lines of the outage itself.
    assert eventually(lambda: "sft: computed " in cockpit.log(from_form), 300)


def _mlflow_has_all(cockpit: Home, flow_run: str, trained: set[str]) -> None:
    """Each stage that a run computed has one run with every point of its curves, and has ended."""
    (parent,) = cockpit.tracked(f"tags.`prefect.flow_run_id` = '{flow_run}'")
    below = cockpit.tracked(f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert sorted(run.data.tags["klear.stage"] for run in below) == sorted(trained)
    assert {run.info.status for run in (parent, *below)} == {"FINISHED"}
    for run in below:
        name, tags = run.info.run_id, run.data.tags
        folder = cockpit.store / tags["klear.stage"] / tags["klear.key"]
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["metrics"].keys() <= run.data.metrics.keys()
        figures = {Path(f).name for f in manifest["files"] if f.startswith("plots/")}
        listed = cockpit.mlflow.list_artifacts
        assert figures <= {Path(f.path).name for f in listed(name, "figures")}
        assert "manifest.json" in {f.path for f in listed(name)}
        curves = folder / "logs" / "metrics.jsonl"
        points: dict[str, set[tuple[int, float]]] = {}
        for line in map(json.loads, curves.read_text().splitlines() if curves.exists() else ()):
            for metric, value in line["metrics"].items():
                points.setdefault(metric, set()).add((line["step"], float(value)))
        for metric, wanted in points.items():
            title = f"{tags['klear.stage']}/{metric}"
            history = [(m.step, m.value) for m in cockpit.mlflow.get_metric_history(name, title)]
            assert sorted(p for p in history if p in wanted) == sorted(wanted), metric


def _steps(store: Path) -> int:
    """Lines of the curves of every SFT, done or under way."""
    count = 0
    for folder in (store / "sft", store / ".work" / "sft"):
        for path in folder.glob("*/logs/metrics.jsonl"):
            with suppress(FileNotFoundError):  # it is being published
                count += len(path.read_text().splitlines())
    return count


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving(latency_s=0.1) as running:
        yield running


def test_a_run_that_would_cost_too_much_fails_with_the_line_that_allows_it_and_keeps_its_pilot(
    cockpit: Home, first: str, endpoint: Endpoint
) -> None:
    runtime = {"output_price": 1000.0, "approve_above": 0.5}
    engine = {"kind": "openai", "model": MODEL, "base_url": endpoint.url, "runtime": runtime}
    changes = f"distill.samples_per_prompt={SAMPLES}\ndistill.engine={json.dumps(engine)}\n"
    changes += "distill.engine.api_key_env=''"
    parameters = {"profile": str(cockpit.profile), "stage": "distill"}
    run = cockpit.submit("stage", **parameters, changes=changes)
    message = cockpit.ended(run)["state"]["message"]
    assert re.search(r"NeedsApproval: \d+ answers would cost about", message)
    assert "0.50 may be spent without approval" in message
    assert "\n" not in message
    assert eventually(lambda: cockpit.states(run) == {"distill": ["Failed"]}), cockpit.states(run)
    assert endpoint.attempts.total() == PILOT  # nothing but the pilot has been paid for
    (line,) = re.findall(r"STAGE(\.engine\.runtime\.approved_cost=\d+)", message)
    again = cockpit.submit("stage", **parameters, changes=f"{changes}\ndistill{line}")
    assert cockpit.ended(again)["state_name"] == "Completed"
    assert set(endpoint.attempts.values()) == {SAMPLES}
    newest = max(cockpit.store.glob("distill/*/samples.parquet"), key=lambda p: p.stat().st_mtime)
    keys = [(s.problem_id, s.index) for s in read_table(newest, Sample)]
    assert len(keys) == len(set(keys)) == endpoint.attempts.total()
