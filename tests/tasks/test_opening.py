"""Runs that died are buried, those that wait are left alone, and a matrix has each cell once."""

import logging
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from prefect.client.schemas.objects import State
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

from tasks import opening
from tasks.opening import LONGEST_LAUNCH, Wanted, bury, opened
from tasks.run import Ledger, dead_ledgers
from tasks.store import Store

LONG_AGO = datetime.now(UTC) - 2 * LONGEST_LAUNCH


def state_after_burial(state: State, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the state that a dead flow run has once another run has looked at it."""
    run = SimpleNamespace(state=state)
    client = SimpleNamespace(
        read_flow_run=lambda _: run,
        set_flow_run_state=lambda _, new, force: setattr(run, "state", new),
        read_task_runs=lambda **_: [],
    )
    monkeypatch.setattr(opening, "get_client", lambda **_: nullcontext(client))
    bury("6f9619ff-8b86-4011-b42d-00c04fc964ff", keep="")
    return run.state.name


@pytest.mark.parametrize(
    "state",
    [Running(), Cancelling(), Paused(timeout_seconds=600), Pending(timestamp=LONG_AGO)],
    ids=lambda s: s.name,
)
def test_a_run_whose_process_is_gone_is_marked_as_crashed(state, monkeypatch):
    assert state_after_burial(state, monkeypatch) == "Crashed"


@pytest.mark.parametrize(
    "state",
    [AwaitingRetry, Scheduled, partial(Suspended, timeout_seconds=600), Pending, Completed],
)
def test_a_retry_that_is_to_come_is_not_cancelled_by_another_runs_start(state, monkeypatch):
    fresh = state()  # made now: a suite takes longer than a launch
    assert state_after_burial(fresh, monkeypatch) == fresh.name


def test_the_stages_of_a_killed_attempt_run_and_wait_no_longer(monkeypatch):
    states = (Running(), Paused(name="WaitingForApproval"), Completed(), Pending())
    tasks = [SimpleNamespace(id=i, name="distill", state=s) for i, s in enumerate(states)]
    told = {}
    client = SimpleNamespace(
        read_task_runs=lambda **_: tasks,
        set_task_run_state=lambda task, new, force: told.update({task: new.name}),
    )
    monkeypatch.setattr(opening, "get_client", lambda **_: nullcontext(client))
    opening.bury_task_runs("6f9619ff-8b86-4011-b42d-00c04fc964ff")
    assert told == {0: "Crashed", 1: "Crashed", 3: "Crashed"}


@pytest.fixture
def here(mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """`opened` works as in a flow, with this database and a store of its own."""
    machine = SimpleNamespace(mlflow_uri=mlflow_uri, home=tmp_path, gpu_slots=0)
    monkeypatch.setattr(opening, "load_machine", lambda: machine)
    monkeypatch.setattr(opening, "open_store", lambda _: Store(tmp_path / "store"))
    monkeypatch.setattr(opening, "get_run_logger", lambda: logging.getLogger("klear"))
    monkeypatch.setattr(opening, "cancellable", lambda _: nullcontext())
    monkeypatch.setattr(opening, "bury", lambda *_, **__: None)
    monkeypatch.setattr(opening, "bury_task_runs", lambda _: None)
    monkeypatch.setattr(opening, "say_cancelled_if_asked", lambda _: None)
    monkeypatch.setattr(opening, "tell_again_if_prefect_was_away", lambda _: None)
    return MlflowClient(tracking_uri=mlflow_uri)


def wanted(meaning: str, parent: str = "") -> Wanted:
    kind = "cell" if parent else "ablation"
    return Wanted(
        kind=kind, profile=kind, seed=0, meaning=meaning, resolved={"sft": {"epochs": 2}},
        stall_minutes=1, name=meaning, parent=parent,
    )  # fmt: skip


def test_a_run_that_is_opened_again_for_each_cell_buries_only_what_was_there_before_it(
    here, monkeypatch
):
    buried: list[str] = []
    monkeypatch.setattr(opening, "_opened_here", set())
    monkeypatch.setattr(opening, "bury_task_runs", buried.append)
    with opened(wanted("matrix")) as whole:
        for cell in ("a", "b"):
            with opened(wanted(cell, parent=whole.run_id)):
                assert len(buried) == 1
    assert len(buried) == 1


def matrix(*cells: str, killed: bool = False) -> tuple[str, list[str]]:
    """The runs of a matrix and of its cells, in order."""
    with opened(wanted("matrix")) as whole:
        found = []
        for name in cells:
            with opened(wanted(name, whole.run_id)) as cell:
                found.append(cell.run_id)
        if killed:
            raise KeyboardInterrupt
    return whole.run_id, found


def test_a_matrix_that_was_killed_continues_the_runs_of_its_finished_cells(here: MlflowClient):
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


def test_a_new_matrix_has_new_cells(here: MlflowClient):
    assert not set(matrix("soft")[1]) & set(matrix("soft")[1])


def died(here: MlflowClient, store: Store, config: str) -> tuple[str, str]:
    """What a SIGKILL leaves: a ledger, a run and the run of a stage that are said to be running."""
    experiment = here.create_experiment(f"klear-{config}")
    run = here.create_run(experiment, run_name=config).info.run_id
    tags = {"mlflow.parentRunId": run}
    stage = here.create_run(experiment, run_name="sft", tags=tags).info.run_id
    Ledger(store, config).write(mlflow_run=run, flow_run="a-flow-run", force="")
    return run, stage


def test_the_next_run_of_another_command_tells_mlflow_who_died(here: MlflowClient, tmp_path: Path):
    store = Store(tmp_path / "store")
    dead = died(here, store, "0" * 16)
    with opened(wanted("alive")) as alive:
        pass
    assert {here.get_run(r).info.status for r in dead} == {"KILLED"}
    assert here.get_run(alive.run_id).info.status == "FINISHED"
    entries = Ledger(store, "0" * 16).read()
    assert (entries["mlflow_run"], entries["flow_run"]) == (dead[0], "")  # it can be continued


def test_the_same_command_continues_who_died(here: MlflowClient, tmp_path: Path):
    same = wanted("same")
    dead, _ = died(here, Store(tmp_path / "store"), same.config)
    with opened(same) as run:
        assert run.run_id == dead
        assert here.get_run(dead).info.status == "RUNNING"
    assert here.get_run(dead).info.status == "FINISHED"


def test_who_looks_for_the_dead_keeps_nobody_from_continuing_them(tmp_path: Path):
    store = Store(tmp_path)
    for config in ("a", "b"):
        Ledger(store, config).write(flow_run=f"old-{config}")
    with store.lock("run-b"):
        (dead,) = dead_ledgers(store)
        with store.lock("run-a", wait=False) as continues:
            assert continues
            dead.write(flow_run="new-a")
            dead.forget("old-a")
            assert dead.read()["flow_run"] == "new-a"
    dead.forget("old-a")
    assert dead.read()["flow_run"] == "new-a"
    dead.forget("new-a")
    assert dead.read()["flow_run"] == ""
