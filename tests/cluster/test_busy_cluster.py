"""A cluster whose every CPU is held for days by the judge of another run."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from klear.configs.settings.judging import JudgeRuntime, JudgeSettings
from klear.configs.settings.topology import Launch
from klear.eval import ray_cluster
from klear.eval.judge import workers
from klear.eval.judge.judge import Judge
from klear.eval.progress import listening
from klear.eval.ray_cluster import BUSY, join
from klear.eval.records import Problem
from klear.tasks.engine.parts import computed_parts
from klear.tasks.models import launch
from tests.cluster import parts_of_tests as work

pytestmark = pytest.mark.system

HELD_S = 120.0
PATIENCE_S = 8.0
POLL_S = 0.2
NOTES = 5


class Other:
    def there(self) -> bool:
        return True


@pytest.fixture
def others(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """An actor on each CPU of both nodes; a test may kill them."""
    for module in (ray_cluster, workers):
        monkeypatch.setattr(module, "POLL_S", POLL_S)
    api: Any = join(cluster.address)
    actors = [api.remote(Other).options(num_cpus=1).remote() for _ in range(2)]
    api.get([actor.there.remote() for actor in actors], timeout=HELD_S)
    deadline = time.monotonic() + HELD_S
    while api.available_resources().get("CPU", 0):  # it is told a moment later
        assert time.monotonic() < deadline
        time.sleep(POLL_S)
    yield actors
    end(actors)


def where() -> str:
    return ray.get_runtime_context().get_node_id()


def end(actors: list[Any]) -> None:
    api: Any = ray
    while actors:
        api.kill(actors.pop())


def test_parts_wait_for_a_cpu_for_longer_than_a_stall_and_say_so(
    others: list[Any], place: Path
) -> None:
    messages: list[str] = []
    begun = time.monotonic()
    moved = [begun]

    def listen(done: float, total: float, note: str) -> None:
        messages.append(f"{done:g} of {total:g} {note}")
        assert time.monotonic() <= moved[-1] + PATIENCE_S
        moved.append(time.monotonic())
        if time.monotonic() > begun + 1.5 * PATIENCE_S:
            end(others)

    with listening(listen):
        folders = list(computed_parts(place / "parts", [1, 2, 3], work.write_square))
    assert [int((folder / "square").read_text()) for folder in folders] == [1, 4, 9]
    assert messages[0] == f"0 of 0 {BUSY}"
    assert messages[-3:] == ["1 of 3 parts", "2 of 3 parts", "3 of 3 parts"]


def test_an_answer_that_waits_for_a_cpu_says_so_and_one_that_takes_long_does_not(
    others: list[Any],
) -> None:
    messages: list[str] = []

    def tell(done: float, total: float, note: str) -> None:
        messages.append(note)
        if len(messages) == NOTES:
            end(others)

    with listening(tell), Judge(JudgeSettings(runtime=JudgeRuntime(workers=2))) as judge:
        surd = Problem(domain="math", prompt="The root of 8?", answer=r"2\sqrt{2}")
        assert judge.judge(surd, r"<think></think>\boxed{\sqrt{8}}").verdict == "AC"
        assert set(messages) == {BUSY}
        waited = len(messages)
        assert waited >= NOTES
        tests = {"kind": "stdin", "cases": [{"input": "1", "output": "1"}], "time_limit_s": 60}
        slow = Problem.model_validate({"domain": "code", "prompt": "Echo.", "tests": tests})
        program = "```python\nimport time; time.sleep(2)\nprint(input())\n```"
        assert judge.judge(slow, f"<think></think>\n{program}").verdict == "AC"
    assert len(messages) == waited


@pytest.mark.usefixtures("others")
def test_training_begins_while_a_judge_holds_every_cpu() -> None:
    api: Any = ray
    places = launch.node_task_options(api, Launch(nodes=2))
    nodes = [api.remote(where).options(**place).remote() for place in places]
    assert len(set(api.get(nodes, timeout=HELD_S))) == 2
    api.util.remove_placement_group(places[0]["scheduling_strategy"].placement_group)
