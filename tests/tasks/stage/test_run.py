"""Orphans are marked as crashed or continued by their own command; waiting runs are left alone."""

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from prefect import states

from klear.tasks.stage import run as module
from klear.tasks.stage.run import Run, RunSpec, RunState, as_params, run_context
from klear.tasks.store.store import Store
from klear.tasks.tracking import prefect_states, run_tracker
from klear.tasks.tracking.prefect_states import mark_crashed

TO_COME_OR_OVER = ("AwaitingRetry", "Scheduled", "Suspended", "Pending", "Completed")


@pytest.mark.parametrize("state", ["Running", "Cancelling", *TO_COME_OR_OVER])
def test_a_run_is_marked_as_crashed_if_its_process_is_gone_and_not_if_one_is_to_come(
    state, monkeypatch
):
    run = SimpleNamespace(state=getattr(states, state)())
    client = SimpleNamespace(
        read_flow_run=lambda _: run,
        set_flow_run_state=lambda _, new, force: setattr(run, "state", new),
        read_task_runs=lambda **_: [],
    )
    monkeypatch.setattr(prefect_states, "get_client", lambda **_: nullcontext(client))
    mark_crashed("6f9619ff-8b86-4011-b42d-00c04fc964ff")
    assert run.state.name == (state if state in TO_COME_OR_OVER else "Crashed")


@pytest.fixture
def here(mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """`run_context` works as in a flow, with this database and a store of its own."""
    machine = SimpleNamespace(mlflow_url=mlflow_uri, home=tmp_path, gpu_slots=0)
    monkeypatch.setitem(run_tracker.PATIENCE_AT_THE_END_S, "KILLED", 60.0)  # a busy machine
    instead = {
        "load_machine": lambda: machine,
        "open_store": lambda _: Store(tmp_path / "store"),
        "get_run_logger": lambda: logging.getLogger("klear"),
        "heeding_the_ui": lambda _: nullcontext(),
        "state_of": lambda _: None,
        **dict.fromkeys(("mark_crashed", "crash_task_runs", "settle_task_runs"), lambda *_: None),
    }
    for name, function in instead.items():
        monkeypatch.setattr(module if hasattr(module, name) else prefect_states, name, function)
    return MlflowClient(tracking_uri=mlflow_uri)


def orphan(here: MlflowClient, store: Store, config: str) -> tuple[str, str]:
    """What a SIGKILL leaves: a state, a run and the run of a stage that are said to be running."""
    experiment = here.create_experiment(f"klear-{config}")
    run = here.create_run(experiment, run_name=config).info.run_id
    tags = {"mlflow.parentRunId": run}
    stage = here.create_run(experiment, run_name="sft", tags=tags).info.run_id
    RunState(store, config).write(mlflow_run=run, flow_run="a-flow-run", force="")
    return run, stage


MINE = RunSpec(
    kind="pipeline", profile="tiny", seed=0, meaning="mine", resolved={}, stall_minutes=1,
    name="mine",
)  # fmt: skip


@pytest.mark.parametrize("same", [True, False])
def test_the_same_command_continues_an_orphan_and_another_kills_it(
    here: MlflowClient, tmp_path: Path, same: bool
):
    store = Store(tmp_path / "store")
    dead, stage = orphan(here, store, MINE.config if same else "0" * 16)
    with run_context(MINE) as run:
        assert (run.run_id == dead) == same
        assert here.get_run(run.run_id).info.status == "RUNNING"
    assert here.get_run(run.run_id).info.status == "FINISHED"
    if not same:
        assert {here.get_run(r).info.status for r in (dead, stage)} == {"KILLED"}
        entries = RunState(store, "0" * 16).read()
        assert (entries["mlflow_run"], entries["flow_run"]) == (dead, "")  # it can be continued


def test_a_stage_is_named_after_what_differs_in_its_settings(tmp_path):
    changed = (("sft.epochs", "0.2"), ("evaluate.k", "4"))
    run = Run(store=Store(tmp_path), changed=changed)
    names = [run.label(stage) for stage in ("sft", "evaluate_sft", "rl_math")]
    assert names == ["sft · epochs=0.2", "evaluate_sft · k=4", "rl_math"]


def test_parameters_are_one_a_leaf_and_no_python():
    settings = {"a": {"b": [1, 2], "c": None}, "sources": [{"name": "x", "k": 1.5}, {"name": "y"}]}
    flat = {"a.b": "1, 2", "a.c": "null", "sources.x.name": "x", "sources.x.k": "1.5"}
    assert as_params(settings) == {**flat, "sources.y.name": "y"}
