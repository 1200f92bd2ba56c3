"""The data stages and the judge of the tiny profile: the same bytes on one machine and on two
nodes, whatever happens to a node."""

import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.loading import load_profile
from configs.settings.pipeline import Pipeline
from eval.ray import parts as ray_parts
from flows.stages import run_stages
from tasks.stage.run import Run, active, current_run
from tasks.store.store import Artifact, Store

pytestmark = pytest.mark.system

LAST = slice(-1, None)


@pytest.fixture(scope="module")
def tiny() -> Pipeline:
    """All problems of the profile in small parts, and enough answers to keep two nodes judging."""
    parts = [f"{s}.runtime.rows_per_part=500" for s in ("dedup", "decontaminate")]
    math = ["distill.sources=[countdown]", "distill.samples_per_prompt=1"]
    code = ["sample.sources=[by_example_rl]", "sample.samples_per_prompt=1"]
    return load_profile("tiny", [*parts, *math, *code])


@pytest.fixture(scope="module")
def local(tiny: Pipeline, hidden: Path) -> dict[str, str]:
    """Digest of every stage's result as this machine alone computes it."""
    with active(Run(store=Store(hidden / "local"))):
        return digests(run_stages(tiny, until="filter_rl"))


def digests(made: dict[str, Artifact]) -> dict[str, str]:
    return {artifact.stage: artifact.digest for artifact in made.values()}


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Watching:
    """Calls `act(stage, done)` whenever a stage starts (-1) or gets on."""

    def __init__(self, act: Callable[[str, float], None]) -> None:
        self.act = act

    def started(self, stage: str, why: str) -> None:
        self.act(stage, -1)

    def progress(self, stage: str, done: float, total: float, note: str) -> None:
        self.act(stage, done)

    def finished(
        self, stage: str, outcome: str, seconds: float, metrics: Mapping[str, float]
    ) -> None: ...


@pytest.fixture
def over_ray(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The stages whose parts Ray was given, by name, as they go."""
    stages, original = set[str](), ray_parts.parts_over_ray

    def noting(address: str, scratch: Path, *others: Any) -> Generator[Path, None, None]:
        stages.add(scratch.relative_to(current_run().store.root).parts[1])
        return original(address, scratch, *others)

    monkeypatch.setattr(ray_parts, "parts_over_ray", noting)
    return stages


def test_two_nodes_give_the_digests_of_one_machine(cluster, place, tiny, local, over_ray):
    with active(Run(store=Store(place / "store"))):
        assert digests(run_stages(tiny, until="filter_rl")) == local
    assert over_ray >= {"collect", "dedup", "decontaminate"}


def test_nodes_killed_in_the_middle_change_no_digest(cluster, place, tiny, local):
    killed: list[str] = []

    def is_in_the_middle(stage: str, done: float) -> bool:
        if stage == "judge_rl" and done == 1:
            wait_for(lambda: cluster.processes("ray::judged", LAST))
        judging = stage == "judge_rl" and cluster.processes("ray::judged", LAST)
        return bool(done >= 1 and (stage == "collect" or judging))

    def act(stage: str, done: float) -> None:
        if stage in ("dedup", "judge_rl") and done == -1:
            cluster.second()
        if stage not in killed and is_in_the_middle(stage, done):
            killed.append(stage)
            cluster.kill(cluster.nodes[-1])

    with active(Run(store=Store(place / "store"), display=Watching(act))):
        assert digests(run_stages(tiny, until="filter_rl")) == local

    assert killed == ["collect", "judge_rl"]
