"""What `klear status` reads from the store and from servers that are away."""

import socket
from pathlib import Path

from configs.machine import Machine
from flows.cli.quantities import amount, duration, short_count, size
from flows.cli.status import run_lines, server_lines, store_lines
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


def test_quantities_read_well():
    assert [duration(s) for s in (3.21, 245, 7805)] == ["3.2 s", "4 min 05 s", "2 h 10 min"]
    assert [duration(h * 3600) for h in (47.5, 48)] == ["47 h 30 min", "2 d 00 h"]
    assert [size(n) for n in (999, 3_400_000, 2e15)] == ["999 B", "3.4 MB", "2000.0 TB"]
    counts = (950, 1500, 99_960, 999_600, 1.5e9, 4.2e12)
    assert [short_count(n) for n in counts] == ["950", "1.5 k", "100 k", "1.0 M", "1.5 G", "4.2 T"]
    assert [amount(v) for v in (0.021, 7.46, 12_345.6)] == ["0.021", "7.5", "12,346"]
