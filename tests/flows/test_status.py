"""What `klear status` reads from the store and from servers that are away."""

import socket
from pathlib import Path

from configs.machine import Machine
from flows.status import run_lines, server_lines, stage_results, store_lines


def publish(store: Path, stage: str, key: str, size: int) -> None:
    folder = store / stage / key
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "rows.parquet").write_bytes(b"x" * size)


def test_stages_are_listed_in_the_order_of_a_run(tmp_path: Path) -> None:
    for stage in ("report", "sft", "collect"):
        publish(tmp_path, stage, "k1", 10)
    assert [s.stage for s in stage_results(tmp_path)] == ["collect", "sft", "report"]


def test_results_and_bytes_are_counted(tmp_path: Path) -> None:
    publish(tmp_path, "dedup", "k1", 998)
    publish(tmp_path, "dedup", "k2", 998)
    (found,) = stage_results(tmp_path)
    assert (found.results, found.bytes) == (2, 2000)  # two bytes of each manifest
    assert "2 results" in "\n".join(store_lines(tmp_path))
    assert "2.0 kB" in "\n".join(store_lines(tmp_path))


def test_unfinished_work_is_no_result(tmp_path: Path) -> None:
    publish(tmp_path, ".work/dedup", "k1", 10)
    (tmp_path / "dedup" / "k2").mkdir(parents=True)
    assert stage_results(tmp_path) == []


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(store_lines(tmp_path / "none")) == [f"store {tmp_path / 'none'}: empty"]


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
