"""Which end of a launch over nodes is reported, when its parts end one after the other."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.settings.topology import Launch
from tasks.models import ray_launch
from training.launch.node import EXIT_WORKER_LOST

HOUR = 3_600.0


class Ray:
    """Calls are (time of the end, exit code), on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(ray_launch.time, "monotonic", lambda: self.now)

    def wait(self, calls, timeout: float | None):
        until = min(end for end, _ in calls)
        self.now = max(self.now, until if timeout is None else min(until, self.now + timeout))
        return [c for c in calls if c[0] <= self.now][:1], []

    def get(self, call):
        return call[1]


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([(HOUR, 0), (HOUR + 1, 0)], 0),
        # the first waited for a process of the second, which says only later that it was killed
        ([(HOUR, 1), (HOUR + 5, EXIT_WORKER_LOST)], EXIT_WORKER_LOST),
        ([(HOUR, 1), (HOUR + 5, 1)], 1),
        ([(HOUR, 1), (2 * HOUR, EXIT_WORKER_LOST)], 1),  # it still runs: it is not lost
    ],
)
def test_a_lost_process_is_heard_of_before_the_verdict(tmp_path, monkeypatch, ends, verdict):
    (tmp_path / "logs").mkdir()
    job, asked = tmp_path / ".resume" / "job.json", []

    def node(end):
        def remote(command: list[str], log: str):
            asked.append((command, Path(log).name))
            return end

        return SimpleNamespace(run=SimpleNamespace(remote=remote))

    ray, hosts = Ray(monkeypatch), ["10.0.0.1:20001", "10.0.0.2:20002"]
    assert ray_launch._trained(ray, list(map(node, ends)), hosts, job, Launch(nodes=2)) == verdict
    for rank, (command, log) in enumerate(asked):
        assert log == f"node-{rank}.log"
        assert command[command.index("--at") + 1] == hosts[0]  # where all meet
        assert command[command.index("--rank") + 1] == str(rank)
