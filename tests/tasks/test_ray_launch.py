"""Which end of a launch over nodes is reported, when its parts end one after the other."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from configs.settings.launching import Launch, OwnServer
from tasks.models import ray_launch
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN

HOUR = 3_600.0
TOKEN = "the-token-of-this-start"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(ray_launch.time, "monotonic", lambda: self.now)


class Remote:
    """An actor's method: the call is the value itself."""

    def __init__(self, value: object) -> None:
        self.value = value

    def remote(self, *_: object) -> object:
        return self.value


class Node:
    def __init__(self, ends_at: float, code: int) -> None:
        self.train: Any = Remote((ends_at, code))
        self.alive = Remote((0.0, True))


class Ray:
    """Calls are (time of the end, result)."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def wait(self, calls, num_returns: int, timeout: float | None):
        if calls:
            until = min(c[0] for c in calls)
            limit = until if timeout is None else self.clock.now + timeout
            self.clock.now = max(self.clock.now, min(until, limit))
        ended = [c for c in calls if c[0] <= self.clock.now][:num_returns]
        return ended, [c for c in calls if c not in ended]

    def get(self, call):
        return call[1]


class Serves(Node):
    """The node behind those that train; `url` and a token are in the file that it was told, if it
    answers."""

    def __init__(self, ends_at: float, code: int, url: str) -> None:
        super().__init__(ends_at, code)
        self.url, self.serve = url, self

    def remote(self, job: str, packed: str, host: str, place: str, log: str) -> object:
        assert host == "10.0.0.3"
        if self.url:
            Path(place).write_text(f"{self.url} {TOKEN}\n")
        return self.train.value


class Told(Node):
    """A node that trains; keeps what it was told of a server."""

    server: tuple[object, ...] = ()

    def __init__(self, ends_at: float, code: int) -> None:
        super().__init__(ends_at, code)
        self.call: object = (ends_at, code)
        self.train = self

    def remote(self, *given: object) -> object:
        self.server = given[5:]
        return self.call


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's file, with the logs of three nodes."""
    for folder in ("logs", ".resume"):
        (tmp_path / folder).mkdir()
    for rank in range(3):
        (tmp_path / "logs" / f"node-{rank}.log").touch()
    monkeypatch.setattr(ray_launch, "_code", lambda ray, call, rank, host: ray.get(call))
    return tmp_path / ".resume" / "job.json"


@pytest.mark.parametrize(
    ("trainers", "server", "verdict"),
    [
        ([(HOUR, 0), (HOUR + 1, 0)], (2 * HOUR, 137, "http://10.0.0.3:8"), 0),
        (
            [(HOUR, 0), (HOUR + 1, 0)],
            (HOUR / 2, EXIT_WORKER_LOST, "http://10.0.0.3:8"),
            EXIT_WORKER_LOST,
        ),
        ([(HOUR, 1), (HOUR + 1, 1)], (2 * HOUR, 137, "http://10.0.0.3:8"), 1),
        ([(HOUR, 0), (HOUR + 1, 0)], (HOUR / 2, 1, ""), 1),  # it never answered: nobody trains
    ],
)
def test_a_server_on_a_node_of_its_own_is_there_first_and_its_end_is_a_loss(
    job, monkeypatch, trainers, server, verdict
):
    clock = Clock(monkeypatch)
    launch = Launch(nodes=2, server=OwnServer(apart=True))
    nodes = [*(Told(*end) for end in trainers), Serves(*server)]
    hosts = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
    assert ray_launch._trained(Ray(clock), nodes, hosts, job, launch) == verdict
    assert [node.server for node in nodes[:2]] == [(server[2], TOKEN) if server[2] else ()] * 2
    assert not job.with_name("vllm.url").exists()  # it holds the token


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([(HOUR, 0), (HOUR + 1, 0)], 0),
        # the first waited for a process of the second, which says only later that it was killed
        ([(HOUR, 1), (HOUR + 5, EXIT_WORKER_LOST)], EXIT_WORKER_LOST),
        ([(HOUR, 1), (HOUR + 5, 1)], 1),
        ([(HOUR, 1), (2 * HOUR, EXIT_WORKER_LOST)], 1),  # it answers: it is not lost
        # a first machine without its port never met the others, which may end by a signal
        ([(HOUR, PORT_TAKEN), (HOUR + 5, 137)], PORT_TAKEN),
    ],
)
def test_a_lost_process_is_heard_of_before_the_verdict(job, monkeypatch, ends, verdict):
    clock, launch = Clock(monkeypatch), Launch(nodes=2)
    nodes = [Node(*end) for end in ends]
    assert ray_launch._trained(Ray(clock), nodes, ["a", "b"], job, launch) == verdict


def test_a_node_hands_the_servers_token_on_through_the_environment(tmp_path, monkeypatch):
    ran = {}
    monkeypatch.setattr(
        ray_launch._Node, "_run", lambda _, command, log, **told: ran.update(told, command=command)
    )
    launch = Launch(nodes=2, server=OwnServer(apart=True)).model_dump_json()
    url = "http://10.0.0.3:8"
    ray_launch._Node().train("job.json", launch, "10.0.0.1:1", 0, "a.log", url, TOKEN)  # type: ignore[call-arg]
    assert (ran["KLEAR_STAGE_VLLM"], ran["KLEAR_STAGE_VLLM_TOKEN"]) == (url, TOKEN)
    assert TOKEN not in " ".join(ran["command"])


def test_the_file_with_the_token_is_its_owners_alone(tmp_path):
    place = tmp_path / "vllm.url"
    process = subprocess.Popen(
        ["sh", "-c", ray_launch.ANNOUNCE, str(place)],
        env={
            "PATH": "/usr/bin:/bin",
            "KLEAR_STAGE_VLLM": "http://a:1",
            "KLEAR_STAGE_VLLM_TOKEN": TOKEN,
        },
    )
    try:
        deadline = time.monotonic() + 30
        while not place.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert place.read_text().split() == ["http://a:1", TOKEN]
        assert place.stat().st_mode & 0o777 == 0o600
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        assert TOKEN not in command
    finally:
        process.kill()
        process.wait()
