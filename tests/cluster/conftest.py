"""A Ray cluster of two nodes on loopback, each of one CPU, that ends with its tests."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import below, commanded, free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STORE_BYTES = 80_000_000  # about the least that Ray accepts
START_S = 180.0
RAY = {  # a node that is gone refuses connections, and is declared dead after a few of them
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else a ~/.ray/auth_token, which `ray.init()` leaves, decides
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "10",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}
AS_AT_HOME = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Says that this is no cluster for Linux: then the address of whoever joins is 127.0.0.1."""


class Cluster:
    """Nodes as processes below this one: `close` ends all of them, whatever they started."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        self.folder, self.hidden = folder, hidden
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, *, blind: bool = False) -> subprocess.Popen[bytes]:
        """One more node; it is up when Ray says so on its output."""
        first = not self.nodes
        where = ["--head", f"--port={self.address.rpartition(':')[2]}"]
        node = [
            *(sys.executable, str(HERE / "loopback.py"), "ray", "start", "--block"),
            *(where if first else [f"--address={self.address}"]),
            *("--node-ip-address=127.0.0.1", "--num-cpus=1", "--num-gpus=0"),
            *(["--include-dashboard=false"] if first else []),
            *("--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={self.folder}"),
            f"--object-store-memory={STORE_BYTES}",
        ]
        if blind:
            hide = ["bwrap", "--dev-bind", "/", "/", "--tmpfs", str(self.hidden)]
            caps = ["--cap-add", "ALL"] if os.geteuid() == 0 else []
            node = [*hide, *caps, "--die-with-parent", "--", *node]
        log = self.folder / f"node-{len(self.nodes)}.log"
        supervise = str(ROOT / "tasks" / "engine" / "supervise.py")
        supervised = [sys.executable, "-I", supervise, str(os.getpid()), "1", "--"]
        paths = (str(ROOT / ".package"), str(ROOT), os.environ.get("PYTHONPATH"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*supervised, *node],
                env=os.environ | RAY | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.nodes.append(process)
        deadline = time.monotonic() + START_S
        while b"Ray runtime started" not in log.read_bytes():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return process

    def second(self) -> subprocess.Popen[bytes]:
        """The second node, a new one if there is none alive."""
        last = self.nodes[-1]
        return self.start() if last is self.nodes[0] or last.poll() is not None else last

    def processes(self, word: str, nodes: slice = slice(None)) -> list[psutil.Process]:
        """Those of the nodes that have `word` on their command line."""
        return [p for node in self.nodes[nodes] for p in commanded(word, below(node.pid))]

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """SIGKILL to everything of a node at once, as when a machine loses its power."""
        for act in ("suspend", "kill"):
            for process in below(node.pid):
                with suppress(psutil.NoSuchProcess):
                    getattr(process, act)()
        node.wait(60)

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.terminate()
        for node in self.nodes:
            node.wait(60)


@pytest.fixture(scope="session")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that blind nodes do not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="session")
def one_node(hidden: Path) -> Iterator[Cluster]:
    """The first node, which every test shares, with this process connected to it."""
    import ray
    from ray._private import services

    # Ray puts this machine's outward address in the place of 127.0.0.1, and then listens to all.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "resolve_ip_for_localhost", str)
        patch.setenv("RAY_AUTH_MODE", RAY["RAY_AUTH_MODE"])
        for name, value in AS_AT_HOME.items():  # for the processes of stages
            patch.setenv(name, value)
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
            cluster = Cluster(Path(folder), hidden)
            try:
                cluster.start()
                yield cluster
            finally:
                ray.shutdown()
                cluster.close()


@pytest.fixture
def cluster(one_node: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Both nodes; data parts and the judge use them."""
    one_node.second()
    monkeypatch.setenv("KLEAR_RAY_ADDRESS", one_node.address)
    return one_node


@pytest.fixture
def blind(cluster: Cluster) -> Iterator[None]:
    """The second node is a blind one."""
    cluster.kill(cluster.second())
    node = cluster.start(blind=True)
    yield
    cluster.kill(node)


@pytest.fixture
def place(hidden: Path, tmp_path: Path) -> Path:
    """A folder of this test that a blind node does not see."""
    folder = hidden / tmp_path.name
    folder.mkdir()
    return folder
