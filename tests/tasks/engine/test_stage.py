"""A stage is computed once, resumed after a kill, redone when asked, and never half published.
Orphans are marked as crashed or continued by their own command; waiting runs are left alone."""

import logging
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from prefect import states
from processes import eventually

from klear.configs.settings.evaluation import ReportSettings
from klear.tasks.engine.events import Event, Failed, Planned, Progress, Published, Started, Waiting
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.scheduler import Node, run_graph
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.engine.stage_process import Stalled
from klear.tasks.engine.why import NEVER
from klear.tasks.observe import prefect, run_context, tracker
from klear.tasks.observe.pages import Story
from klear.tasks.observe.run_context import RunSpec, RunState
from klear.tasks.observe.tracker import Tracker, as_params
from klear.tasks.report.report import report as report_stage
from klear.tasks.report.report import summary_text
from klear.tasks.report.run_story import PlannedStage
from klear.tasks.store import store
from klear.tasks.store.hardware import this_machine
from klear.tasks.store.store import Artifact, Store
from tests.tasks.engine.bodies import How, Knobs, SilentServer, hangs, write_text


class Heard(list[Event]):
    """Everything that a run tells."""

    on = list.append

    def computed(self) -> list[Any]:
        """Texts of the settings with which a stage was computed, in order."""
        return [e.task.settings.text for e in self if isinstance(e, Started)]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def run(tmp_path: Path, heard: Heard) -> Run:
    return Run(store=Store(tmp_path), observers=(heard,))


def test_a_stage_is_computed_again_where_its_meaning_changed_and_nowhere_else(
    run: Run, heard: Heard
) -> None:
    tail = write_text.named("tail")

    def chain(run: Run, **settings: Any) -> Artifact:
        with active(run):
            return tail(write_text(settings=Knobs(**settings)), settings=Knobs(text="!"))

    first = chain(run)
    assert chain(run, runtime=How(workers=9)) == first  # how is not what
    assert heard.computed() == ["hello", "!"]
    forced = frozenset({"write_text"})
    chain(Run(store=run.store, observers=(heard,), force=forced))
    assert heard.computed()[2:] == ["hello"]  # equal bytes keep what was made of them
    chain(run, text="bye")
    assert heard.computed()[3:] == ["bye", "!"]
    manifest = run.store.manifest(first)
    assert manifest.settings == {"text": "!", "runtime": {"workers": 1}}
    assert [i.stage for i in manifest.inputs] == ["write_text"]
    assert set(manifest.files) == {"text.txt", "logs/time.txt"}
    assert manifest.hardware == this_machine()


def test_a_failed_stage_publishes_nothing_and_its_work_is_resumed(run: Run) -> None:
    @stage(version=1)
    def flaky(out: Path, *, settings: Knobs) -> Metrics:
        scratch = out / ".resume" / "half.txt"
        if not scratch.exists():
            scratch.parent.mkdir()
            scratch.write_text("half of it")
            raise RuntimeError("killed")
        (out / "whole.txt").write_text(scratch.read_text() + ", and the rest")
        return {}

    with active(run):
        with pytest.raises(RuntimeError, match="killed"):
            flaky(settings=Knobs())
        assert not list(run.store.root.glob("flaky/*"))
        result = flaky(settings=Knobs())
    assert result.file("whole.txt").read_text() == "half of it, and the rest"
    assert not (result.folder / ".resume").exists()


def test_an_interrupt_while_old_files_are_removed_loses_neither_the_new_result_nor_its_place(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with active(run):
        first = write_text(settings=Knobs())
    again = Run(store=run.store, force=frozenset({"write_text"}))
    monkeypatch.setattr(store.shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
    work = run.store.work("write_text", first.key)
    work.mkdir(parents=True)
    (work / "text.txt").write_text("new")
    fields = run.store.manifest(first).model_dump(exclude={"files", "digest"})
    with pytest.raises(KeyboardInterrupt):
        again.store.publish(work, **fields)
    result, damage = run.store.find("write_text", first.key, verify=True)
    assert (result and result.file("text.txt").read_text(), damage) == ("new", "")


def test_a_stage_that_waits_for_another_run_ends_with_its_own_and_says_so(
    run: Run, heard: Heard
) -> None:
    key = write_text.key((), Knobs(), run)

    def wait_for_another_run() -> Artifact:
        with active(run):
            return write_text(settings=Knobs())

    def fail() -> Artifact:
        assert eventually(lambda: any(isinstance(e, Waiting) for e in heard))
        raise OSError("disk full")

    with run.store.lock(f"write_text-{key}"), pytest.raises(OSError, match="disk full"):
        run_graph({"waits": Node((), wait_for_another_run), "fails": Node((), fail)})
    (failed,) = (event for event in heard if isinstance(event, Failed))
    assert failed.interrupted


def test_a_metric_that_is_no_number_is_counted_and_does_not_spoil_the_manifest(run: Run) -> None:
    @stage(version=1)
    def odd(out: Path, *, settings: Knobs) -> Metrics:
        (out / "a.txt").write_text("a")
        return {"good": 1.0, "bad": float("nan"), "worse": float("inf")}

    with active(run):
        for _ in range(2):  # made, and reused
            assert odd(settings=Knobs()).metrics == {"good": 1.0, "non_finite_metrics": 2.0}


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from klear.tasks.store.store import Store\n"
        f"with Store(Path({str(tmp_path)!r})).lock('a'): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with Store(tmp_path).lock("a", wait=False) as free:
        assert not free
    holder.kill()
    holder.wait()
    with Store(tmp_path).lock("a", wait=False) as free:
        assert free


@pytest.mark.parametrize("where", ["body", "fetch", "publish", "share"])
def test_a_stage_that_hangs_fails_and_publishes_nothing(run, heard, tmp_path, where, silence):
    """Also where it is the store's server that does not answer any more."""
    with active(run):
        rows = write_text(settings=Knobs())
    stage = {"body": hangs, "share": write_text}.get(where, write_text.named("tail"))
    inputs = () if where == "share" else (rows,)

    class Silence:
        def on(self, event: Event) -> None:
            if isinstance(event, Progress) and event.total:
                silence()

    patient = replace(
        run, store=SilentServer(tmp_path, where), stall_minutes=30, observers=(heard, Silence())
    )
    with active(patient), pytest.raises(Stalled, match=r"made no progress.*1 of 7 files moved"):
        stage(*inputs, settings=Knobs())
    failed = [event.interrupted for event in heard if isinstance(event, Failed)]
    assert failed == ([] if where == "share" else [False])
    assert {path.parent.name for path in run.store.root.glob("[!.]*/*")} == {"write_text"}


def test_a_run_tells_its_report_what_it_planned_and_did(run: Run) -> None:
    expected, pages = PlannedStage("write_text", why="never computed"), []
    for action in ("computed", "reused"):
        story = Story()
        each = Run(store=run.store, observers=(story,))
        each.tell(Planned([expected]))
        with active(each):
            text = write_text(settings=Knobs())
            pages.append(report_stage(text, settings=ReportSettings(profile="tiny")))
        assert story.story().happened[0].action == action
    assert "\n2 stages: 2 reused." in summary_text(story.story(), "")
    assert "never computed" in pages[0].file("report.html").read_text()
    assert pages[0].key == pages[1].key


class Broken:
    def on(self, event: Event) -> None:
        raise ConnectionError("its server is down")


def test_an_observer_that_fails_is_named_in_the_log_and_the_run_goes_on(run, heard, caplog):
    with active(replace(run, observers=(Broken(), heard))):
        text = write_text(settings=Knobs())
        assert write_text(settings=Knobs()) == text
    kinds = [type(event) for event in heard]
    assert (kinds.count(Started), kinds.count(Published)) == (1, 2)
    assert "Broken failed at Started, the run goes on: its server is down" in caplog.text


def test_a_result_keeps_why_it_was_computed_and_against_which_earlier_one(run: Run) -> None:
    reads = write_text.named("reads")

    def why(run: Run, rows: str, text: str) -> tuple[str, str]:
        with active(run):
            result = reads(write_text(settings=Knobs(text=rows)), settings=Knobs(text=text))
        manifest = run.store.manifest(result)
        return manifest.why, manifest.earlier

    first = why(run, "a", "x")
    assert first == (NEVER, "")
    (folder,) = run.store.root.glob("reads/*")
    earlier = f"reads/{folder.name}"
    assert why(run, "a", "y") == ("text: x → y", earlier)
    assert why(run, "b", "x") == ("other rows from write_text", earlier)
    assert why(run, "a", "x") == first  # reused: what was true then
    assert why(Run(store=run.store, force=frozenset({"reads"})), "a", "x")[0] == "forced"


def test_a_run_is_marked_as_crashed_only_if_its_process_is_gone(monkeypatch):
    to_come_or_over = ("AwaitingRetry", "Scheduled", "Suspended", "Pending", "Completed")
    run = SimpleNamespace(state=None)
    client = SimpleNamespace(
        read_flow_run=lambda _: run,
        set_flow_run_state=lambda _, new, force: setattr(run, "state", new),
        read_task_runs=lambda **_: [],
    )
    monkeypatch.setattr(prefect, "get_client", lambda **_: nullcontext(client))
    for name in ("Running", "Cancelling", *to_come_or_over):
        run.state = getattr(states, name)()
        is_over = prefect.mark_crashed("6f9619ff-8b86-4011-b42d-00c04fc964ff")
        assert is_over == (name != "Suspended")
        assert run.state.name == (name if name in to_come_or_over else "Crashed")


@pytest.fixture
def here(mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """`run_context` works as in a flow, with this database and a store of its own."""
    machine = SimpleNamespace(mlflow_url=mlflow_uri, home=tmp_path, gpu_slots=0)
    monkeypatch.setitem(tracker.PATIENCE_AT_THE_END_S, "KILLED", 60.0)  # a busy machine
    monkeypatch.setattr(run_context, "load_machine", lambda: machine)
    monkeypatch.setattr(run_context, "open_store", lambda _: Store(tmp_path / "store"))
    instead = {
        "get_run_logger": lambda: logging.getLogger("klear"),
        "watch_cancel_requests": lambda _: nullcontext(),
        "state_of": lambda _: None,
        **dict.fromkeys(("mark_crashed", "crash_task_runs", "settle_task_runs"), lambda *_: True),
    }
    for name, function in instead.items():
        monkeypatch.setattr(prefect, name, function)
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
def test_the_same_command_continues_an_orphan_and_another_kills_it(here, tmp_path, same):
    store = Store(tmp_path / "store")
    dead, stage = orphan(here, store, MINE.config if same else "0" * 16)
    with run_context.run_context(MINE) as run:
        assert (run.run_id == dead) == same
        assert here.get_run(run.run_id).info.status == "RUNNING"
    assert here.get_run(run.run_id).info.status == "FINISHED"
    if not same:
        assert {here.get_run(r).info.status for r in (dead, stage)} == {"KILLED"}
        entries = RunState(store, "0" * 16).read()
        assert (entries["mlflow_run"], entries["flow_run"]) == (dead, "")  # it can be continued


def test_a_state_that_a_power_cut_emptied_stops_no_run(here, tmp_path):
    for config in ("0" * 16, MINE.config):
        RunState(Store(tmp_path / "store"), config).write(mlflow_run="dead")
        (tmp_path / "store" / ".runs" / f"{config}.json").write_text("")
    with run_context.run_context(MINE) as run:
        assert run.run_id != "dead"


def test_a_failed_cell_gets_nobody_to_mark_its_living_ablation_as_crashed(
    here, tmp_path, monkeypatch
):
    marked: list[str] = []
    monkeypatch.setattr(prefect, "mark_crashed", lambda flow_run: marked.append(flow_run) or True)
    ablation, cell = (RunState(Store(tmp_path / "store"), c * 16) for c in "ab")
    for state in (ablation, cell):
        state.write(mlflow_run="m", flow_run="alive")
    with Store(tmp_path / "store").lock(ablation.lock), run_context.run_context(MINE):
        assert marked == []
    with run_context.run_context(MINE):
        assert marked == ["alive"] * 2


def test_a_stage_is_named_after_what_differs_in_its_settings_which_are_parameters_one_a_leaf():
    changed = (("sft.epochs", "0.2"), ("evaluate.k", "4"))
    names = [Tracker(changed=changed).label(stage) for stage in ("sft", "evaluate_sft", "rl_math")]
    assert names == ["sft · epochs=0.2", "evaluate_sft · k=4", "rl_math"]
    settings = {"a": {"b": [1, 2], "c": None}, "sources": [{"name": "x", "k": 1.5}, {"name": "y"}]}
    flat = {"a.b": "1, 2", "a.c": "null", "sources.x.name": "x", "sources.x.k": "1.5"}
    assert as_params(settings) == {**flat, "sources.y.name": "y"}
