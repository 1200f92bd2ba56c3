"""The data stages and the judge of the tiny profile: the same bytes on one machine and on two
nodes, whatever happens to a node."""

from pathlib import Path
from typing import Any

import pytest
from processes import at_least
from psutil import Process

from klear.configs.loading import load_profile
from klear.configs.settings.pipeline import Pipeline
from klear.flows.run import compute
from klear.tasks.engine.events import Event, Observer, Progress, Started
from klear.tasks.engine.run import Run, active
from klear.tasks.store.store import Store

pytestmark = pytest.mark.system

LAST = slice(-1, None)


def tiny() -> Pipeline:
    """All problems of the profile in small parts, and enough answers to keep two nodes judging."""
    small = [f"{s}.runtime.rows_per_part=500" for s in ("dedup", "decontaminate")]
    math = ["distill.sources=[countdown]", "distill.samples_per_prompt=1"]
    code = ["sample.sources=[by_example_rl]", "sample.samples_per_prompt=1"]
    return load_profile("tiny", [*small, *math, *code])


def digests(store: Path, *observers: Observer) -> dict[str, str]:
    with active(Run(store=Store(store), observers=observers)):
        results = compute(tiny(), until="filter_rl")
    return {artifact.stage: artifact.digest for artifact in results.values()}


class NodeKiller:
    """An observer of the run that kills the last node in the middle of two stages."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.killed = cluster, list[str]()

    def on(self, event: Event) -> None:
        match event:
            case Started(task) if task.stage in ("dedup", "judge_rl"):
                self.cluster.second()
            case Progress(stage, done) if done >= 1 and stage not in self.killed:
                self.progress(stage, done)

    def progress(self, stage: str, done: float) -> None:
        if stage == "judge_rl" and done == 1:
            at_least(1, self.judging)
        if stage == "collect" or (stage == "judge_rl" and self.judging()):
            self.killed.append(stage)
            self.cluster.kill(self.cluster.nodes[-1])

    def judging(self) -> list[Process]:
        return self.cluster.processes("ray::judge_on_node", LAST)


def test_nodes_killed_in_the_middle_change_no_digest(cluster, place, hidden, monkeypatch):
    killer = NodeKiller(cluster)
    over_two_nodes = digests(place / "store", killer)
    assert killer.killed == ["collect", "judge_rl"]
    monkeypatch.delenv("KLEAR_RAY_ADDRESS")
    assert over_two_nodes == digests(hidden / "local")
