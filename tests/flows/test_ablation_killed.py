"""A killed ablation continues with the same command: what is finished is not done again."""

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from home import KLEAR, ROOT, eventually

pytestmark = pytest.mark.system

LOG = "first.log"
LIVE = ["PENDING", "RUNNING", "PAUSED", "CANCELLING", "SCHEDULED"]


@pytest.fixture
def command(cockpit, monkeypatch):
    """`klear ablate` of two cells beside each other; how many seeds comes behind it."""
    # With one GPU slot one cell would wait for the other's training.
    monkeypatch.setitem(cockpit.environment, "KLEAR_GPU_SLOTS", "0")
    spec = Path(__file__).with_name("micro.yaml")
    return ("ablate", str(spec), "--concurrent", "2", "--seeds")


@contextmanager
def started(cockpit, *words, until):
    """The command in a session of its own, so that one signal ends all of it but its stages; it is
    killed after the block, which begins when `until` holds."""
    with (cockpit.home / LOG).open("wb") as log:
        process = subprocess.Popen([*KLEAR, *words], env=cockpit.environment, cwd=ROOT, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
    try:
        assert eventually(lambda: until() or process.poll() is not None, 1_500)
        assert process.poll() is None, (cockpit.home / LOG).read_text()
        yield process
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(3_000)  # some 60 s of CPU time; elsewhere a machine may be busy
def test_a_killed_matrix_goes_on_where_it_was(cockpit, command):
    stages = ("base", "sft", "evaluate_sft", "ablate_micro")
    of_others = {stage: folders(cockpit, stage) for stage in stages}

    def made(stage: str) -> dict[Path, int]:
        complete = folders(cockpit, stage)
        return {path: complete[path] for path in complete.keys() - of_others[stage]}

    def one_cell_is_done() -> bool:
        return bool(made("evaluate_sft") and cockpit.children())

    with started(cockpit, *command, "1", until=one_cell_is_done):
        pass
    finished = {stage: made(stage) for stage in stages[:3]}
    assert not made("ablate_micro")
    # the supervisors saw their parent die, and nothing of the run is left
    assert eventually(lambda: not cockpit.children(), 120)
    second = cockpit.klear(*command, "1")
    for stage, before in finished.items():
        now = made(stage)
        assert {path: now[path] for path in before} == before  # nothing was made again
    counts = {stage: len(made(stage)) for stage in stages}
    assert counts == {"base": 1, "sft": 2, "evaluate_sft": 2, "ablate_micro": 1}
    (page,) = made("ablate_micro")
    assert page.name in second
    assert "every stage cached" in cockpit.klear(*command, "1")
    runs = cockpit.tracked("", "tiny")
    assert not [r for r in runs if r.info.status != "FINISHED"]
    parents = [r for r in runs if r.data.tags.get("klear.kind") == "ablation"]
    cells = [r for r in runs if r.data.tags.get("klear.kind") == "cell"]
    assert len(parents) == 2  # the third command found nothing unfinished: it is a run of its own
    assert len(cells) == 2 * len(parents)  # no cell was entered twice
    first = min(parents, key=lambda r: r.info.start_time).info.run_id
    names = {r.info.run_name for r in cells if r.data.tags["mlflow.parentRunId"] == first}
    assert names == {"short-seed0", "long-seed0"}


@pytest.mark.timeout(3_000)
def test_a_matrix_in_parallel_is_cancelled_from_the_ui(cockpit, command):
    with started(cockpit, *command, "2", until=cockpit.jobs) as process:
        (matrix,) = under_way(cockpit, "klear-ablation")
        cockpit.set_state(matrix, "CANCELLING", "Cancelling")
        assert process.wait(120) == 1
    assert "cancelled in the Prefect UI" in (cockpit.home / LOG).read_text()
    assert cockpit.flow_run(matrix)["state_name"] == "Cancelled"
    assert eventually(lambda: not cockpit.children(), 120)
    by_flow_run = f"tags.`prefect.flow_run_id` = '{matrix}'"
    runs = [run for run in cockpit.tracked(by_flow_run, "tiny") if "klear.kind" in run.data.tags]
    assert {run.data.tags["klear.kind"] for run in runs} == {"ablation", "cell"}
    assert {run.info.status for run in runs} <= {"KILLED", "FINISHED"}  # seed 0 is cached


def under_way(cockpit, flow: str) -> list[str]:
    """Ids of the runs of a flow that have not ended."""
    wanted = {"flows": {"name": {"any_": [flow]}}, "flow_runs": {"state": {"type": {"any_": LIVE}}}}
    return [run["id"] for run in cockpit.call("flow_runs/filter", wanted)]


def folders(cockpit, stage: str) -> dict[Path, int]:
    """Published results of a stage, with the time at which each was made."""
    manifests = cockpit.store.glob(f"{stage}/*/manifest.json")
    return {path.parent: path.stat().st_mtime_ns for path in manifests}
