"""Which end of a launch over nodes is reported, when its parts end one after the other."""

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from configs.settings.launching import Launch, OwnServer
from tasks.models import ray_launch
from training.launch.node import EXIT_WORKER_LOST, PORT_TAKEN

HOUR = 3_600.0
URL, TOKEN = "http://10.0.0.3:8", "the-token-of-this-start"


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


class Node:
    """Ends at a time with a code; keeps what it was told. `answers`: as a server it comes up."""

    def __init__(self, ends_at: float, code: int, answers: bool = True) -> None:
        self.call, self.answers, self.server = (ends_at, code), answers, ()
        self.train = SimpleNamespace(remote=self._train)
        self.serve = SimpleNamespace(remote=self._serve)

    def _train(self, job, launch, log, at, rank, *server):
        self.server = server
        return self.call

    def _serve(self, job, launch, log, at, place):
        if self.answers:
            Path(place).write_text(f"{URL} {TOKEN}\n")
        return self.call


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / ".resume" / "job.json"


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ([(HOUR, 0), (HOUR + 1, 0)], 0),
        # the first waited for a process of the second, which says only later that it was killed
        ([(HOUR, 1), (HOUR + 5, EXIT_WORKER_LOST)], EXIT_WORKER_LOST),
        ([(HOUR, 1), (HOUR + 5, 1)], 1),
        ([(HOUR, 1), (2 * HOUR, EXIT_WORKER_LOST)], 1),  # it still runs: it is not lost
        # a first machine without its port never met the others, which may end by a signal
        ([(HOUR, PORT_TAKEN), (HOUR + 5, 137)], PORT_TAKEN),
    ],
)
def test_a_lost_process_is_heard_of_before_the_verdict(job, monkeypatch, ends, verdict):
    nodes = [Node(*end) for end in ends]
    found = ray_launch._trained(Ray(monkeypatch), nodes, ["a", "b"], job, Launch(nodes=2))
    assert found == verdict


@pytest.mark.parametrize(
    ("code", "server", "verdict"),
    [
        (0, (2 * HOUR, 137), 0),
        (0, (HOUR / 2, EXIT_WORKER_LOST), EXIT_WORKER_LOST),
        (1, (2 * HOUR, 137), 1),
        (0, (HOUR / 2, 1, False), 1),  # it never answered: nobody trains
    ],
)
def test_a_server_on_a_node_of_its_own_is_there_first_and_its_end_is_a_loss(
    job, monkeypatch, code, server, verdict
):
    job.parent.mkdir()
    launch = Launch(nodes=2, server=OwnServer(apart=True))
    nodes = [Node(HOUR, code), Node(HOUR + 1, code), Node(*server)]
    hosts = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
    assert ray_launch._trained(Ray(monkeypatch), nodes, hosts, job, launch) == verdict
    told = (URL, TOKEN) if nodes[2].answers else ()
    assert [node.server for node in nodes[:2]] == [told, told]
    assert not job.with_name("vllm.url").exists()  # it holds the token


def test_a_node_hands_the_servers_token_on_through_the_environment(monkeypatch):
    ran = {}
    monkeypatch.setattr(
        ray_launch._Node, "_run", lambda _, command, log, **told: ran.update(told, command=command)
    )
    launch = Launch(nodes=2, server=OwnServer(apart=True)).model_dump_json()
    ray_launch._Node().train("job.json", launch, "a.log", "10.0.0.1:1", 0, URL, TOKEN)
    assert (ran["KLEAR_STAGE_VLLM"], ran["KLEAR_STAGE_VLLM_TOKEN"]) == (URL, TOKEN)
    assert TOKEN not in " ".join(ran["command"])


def test_the_file_with_the_token_is_its_owners_alone(tmp_path):
    place = tmp_path / "vllm.url"
    told = {"KLEAR_STAGE_VLLM": URL, "KLEAR_STAGE_VLLM_TOKEN": TOKEN}
    process = subprocess.Popen(
        ["sh", "-c", ray_launch.ANNOUNCE, str(place)], env={"PATH": "/usr/bin:/bin", **told}
    )
    try:
        deadline = time.monotonic() + 30
        while not place.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert place.read_text().split() == [URL, TOKEN]
        assert place.stat().st_mode & 0o777 == 0o600
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
    finally:
        process.kill()
        process.wait()
