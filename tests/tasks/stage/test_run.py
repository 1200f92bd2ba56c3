"""Orphans are marked as crashed, waiting runs are left alone, an ablation has each cell once."""

import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from prefect.states import (
    AwaitingRetry,
    Cancelling,
    Completed,
    Paused,
    Pending,
    Running,
    Scheduled,
    Suspended,
)

from tasks.stage import run as module
from tasks.stage.run import RunSpec, RunState, run_context
from tasks.store.store import Store
from tasks.tracking import prefect_states, run_tracker
from tasks.tracking.prefect_states import mark_crashed

WAITS = partial(Suspended, timeout_seconds=600)


@pytest.mark.parametrize(
    ("state", "has_died"),
    [
        *((s, True) for s in (Running, Cancelling)),
        *((s, False) for s in (AwaitingRetry, Scheduled, WAITS, Pending, Completed)),
    ],
)
def test_a_run_is_marked_as_crashed_if_its_process_is_gone_and_not_if_one_is_to_come(
    state, has_died, monkeypatch
):
    run = SimpleNamespace(state=state())  # made now: a suite takes longer than a launch
    before = run.state.name
    client = SimpleNamespace(
        read_flow_run=lambda _: run,
        set_flow_run_state=lambda _, new, force: setattr(run, "state", new),
        read_task_runs=lambda **_: [],
    )
    monkeypatch.setattr(prefect_states, "get_client", lambda **_: nullcontext(client))
    mark_crashed("6f9619ff-8b86-4011-b42d-00c04fc964ff")
    assert run.state.name == ("Crashed" if has_died else before)


def test_the_stages_of_a_killed_attempt_run_and_wait_no_longer(monkeypatch):
    states = (Running(), Paused(name="WaitingForApproval"), Completed(), Pending())
    tasks = [SimpleNamespace(id=i, name="distill", state=s) for i, s in enumerate(states)]
    states_set = {}
    client = SimpleNamespace(
        read_task_runs=lambda **_: tasks,
        set_task_run_state=lambda task, new, force: states_set.update({task: new.name}),
    )
    monkeypatch.setattr(prefect_states, "get_client", lambda **_: nullcontext(client))
    prefect_states.crash_task_runs("6f9619ff-8b86-4011-b42d-00c04fc964ff")
    assert states_set == {0: "Crashed", 1: "Crashed", 3: "Crashed"}


@pytest.fixture
def here(mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """`run_context` works as in a flow, with this database and a store of its own."""
    machine = SimpleNamespace(mlflow_url=mlflow_uri, home=tmp_path, gpu_slots=0)
    monkeypatch.setitem(run_tracker.PATIENCE_AT_THE_END_S, "KILLED", 60.0)  # a busy machine
    instead = {
        "load_machine": lambda: machine,
        "open_store": lambda _: Store(tmp_path / "store"),
        "get_run_logger": lambda: logging.getLogger("klear"),
        "cancellable": lambda _: nullcontext(),
        "is_cancelling": lambda _: False,
        **dict.fromkeys(("mark_crashed", "crash_task_runs", "settle_task_runs"), lambda *_: None),
    }
    for name, function in instead.items():
        monkeypatch.setattr(module, name, function)
    return MlflowClient(tracking_uri=mlflow_uri)


def spec_of(meaning: str, parent: str = "") -> RunSpec:
    kind = "cell" if parent else "ablation"
    return RunSpec(
        kind=kind, profile=kind, seed=0, meaning=meaning, resolved={"sft": {"epochs": 2}},
        stall_minutes=1, name=meaning, parent=parent,
    )  # fmt: skip


def matrix(*cells: str, killed: bool = False) -> tuple[str, list[str]]:
    """The runs of a matrix and of its cells, in order."""
    with run_context(spec_of("matrix")) as whole:
        found = []
        for name in cells:
            with run_context(spec_of(name, whole.run_id)) as cell:
                found.append(cell.run_id)
        if killed:
            raise KeyboardInterrupt
    return whole.run_id, found


def test_a_matrix_that_was_killed_continues_the_runs_of_its_finished_cells(here, monkeypatch):
    crashed: list[str] = []
    monkeypatch.setattr(module, "crash_task_runs", crashed.append)
    with pytest.raises(KeyboardInterrupt):
        matrix("soft", "hard", killed=True)
    whole, cells = matrix("soft", "hard", "third")
    experiment = here.get_experiment_by_name("klear-cell")
    assert experiment is not None
    under = here.search_runs(
        [experiment.experiment_id],
        f"tags.`mlflow.parentRunId` = '{whole}'",
        order_by=["start_time"],
    )
    assert [r.info.run_id for r in under] == cells
    assert [r.info.run_name for r in under] == ["soft", "hard", "third"]
    assert {r.info.status for r in under} == {"FINISHED"}
    assert len(crashed) == 2  # not again by a cell, while the stages of its matrix are under way


def orphan(here: MlflowClient, store: Store, config: str) -> tuple[str, str]:
    """What a SIGKILL leaves: a state, a run and the run of a stage that are said to be running."""
    experiment = here.create_experiment(f"klear-{config}")
    run = here.create_run(experiment, run_name=config).info.run_id
    tags = {"mlflow.parentRunId": run}
    stage = here.create_run(experiment, run_name="sft", tags=tags).info.run_id
    RunState(store, config).write(mlflow_run=run, flow_run="a-flow-run", force="")
    return run, stage


def test_the_next_run_of_another_command_kills_the_orphan_in_mlflow(
    here: MlflowClient, tmp_path: Path
):
    store = Store(tmp_path / "store")
    dead = orphan(here, store, "0" * 16)
    with run_context(spec_of("alive")) as alive:
        pass
    assert {here.get_run(r).info.status for r in dead} == {"KILLED"}
    assert here.get_run(alive.run_id).info.status == "FINISHED"
    entries = RunState(store, "0" * 16).read()
    assert (entries["mlflow_run"], entries["flow_run"]) == (dead[0], "")  # it can be continued


def test_the_same_command_continues_an_orphan(here: MlflowClient, tmp_path: Path):
    same = spec_of("same")
    dead, _ = orphan(here, Store(tmp_path / "store"), same.config)
    with run_context(same) as run:
        assert run.run_id == dead
        assert here.get_run(dead).info.status == "RUNNING"
    assert here.get_run(dead).info.status == "FINISHED"
