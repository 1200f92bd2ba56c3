"""What `klear status` reads from the store and from servers that are away."""

import socket
from pathlib import Path

from configs.machine import Machine
from flows.cli.servers import run_lines, server_lines, store_lines
from tasks.store.store import Store
from tests.tasks.manifests_by_hand import publish


def test_stages_are_listed_in_the_order_of_a_run_with_their_results(tmp_path: Path) -> None:
    for stage, key in (("report", "k1"), ("sft", "k1"), ("sft", "k2"), ("collect", "k1")):
        publish(tmp_path, stage, key=key)
    (tmp_path / ".work" / "dedup" / "k1").mkdir(parents=True)
    (tmp_path / "dedup" / "k2").mkdir(parents=True)

    head, *lines = store_lines(Store(tmp_path))

    assert head == f"store {tmp_path}:"
    assert [line.split()[:3] for line in lines] == [
        ["collect", "1", "result"],
        ["sft", "2", "results"],
        ["report", "1", "result"],
    ]
    none = Store(tmp_path / "none")
    assert list(store_lines(none)) == [f"store {tmp_path / 'none'}: empty"]


def test_servers_that_are_away_are_down(tmp_path: Path) -> None:
    with socket.socket() as a, socket.socket() as b:  # bound, not listening: nobody answers
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        ports = a.getsockname()[1], b.getsockname()[1]
        machine = Machine(home=tmp_path, prefect_port=ports[0], mlflow_port=ports[1])
        assert [line.split() for line in server_lines(machine)] == [
            ["✗", "prefect", "down"], ["✗", "mlflow", "down"], ["✗", "worker", "down"],
        ]  # fmt: skip
        assert list(run_lines(machine)) == ["latest runs: unknown while Prefect is down"]
