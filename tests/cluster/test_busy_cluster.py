"""A cluster whose every CPU is held for days by the judge of another run."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray

from configs.launching import Launch
from eval.ray_cluster import code_digest, join
from flows import doctor_elsewhere
from tasks import ray_launch

HELD_S = 120.0


class Judge:
    def there(self) -> bool:
        return True


@pytest.fixture
def busy(cluster: Any) -> Iterator[Any]:
    """Both nodes, with an actor on each CPU."""
    api: Any = join(cluster.address)
    judges = [api.remote(Judge).options(num_cpus=1).remote() for _ in range(2)]
    api.get([judge.there.remote() for judge in judges], timeout=HELD_S)
    assert api.available_resources().get("CPU", 0) == 0
    yield cluster
    for judge in judges:
        api.kill(judge)


def test_training_begins_while_a_judge_holds_every_cpu(busy: Any) -> None:
    api: Any = ray
    group, nodes = ray_launch._asked(api, Launch(nodes=2))
    try:
        assert api.get([node.alive.remote() for node in nodes], timeout=HELD_S) == [True, True]
        where = api.util.placement_group_table(group)["bundles_to_node_id"]
        assert len(set(where.values())) == 2
    finally:
        ray_launch._end(api, nodes)
        api.util.remove_placement_group(group)


def test_the_doctor_asks_every_node_for_its_code_though_no_cpu_is_free(
    busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor_elsewhere.ray_trouble(busy.address) == ("", 2)
    monkeypatch.setattr("eval.ray_cluster.code_digest", lambda: f"not {code_digest()}")
    said, count = doctor_elsewhere.ray_trouble(busy.address)
    assert count == 2
    assert said.count("has other code or packages than the machine that asks") == 2
    assert "install the same commit and the same lock file on every node" in said
