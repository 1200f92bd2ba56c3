"""What is asked of the servers without importing Prefect."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from configs.machine import Machine
from flows import prefect_api
from flows.prefect_api import bury_orphans, refusal, worker_name

WORD = "twelve-letters-and-more"


@pytest.fixture
def asking() -> Iterator[int]:
    """The port of a server that lets nobody in."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_who_is_refused_is_told_what_to_set(tmp_path: Path, asking: int, server: str) -> None:
    ports = {f"{server}_port": asking}
    without = Machine(home=tmp_path, **ports)  # type: ignore[arg-type]
    assert f"{server} asks for a password: set KLEAR_PASSWORD" in refusal(without, server)
    wrong = Machine(home=tmp_path, password=SecretStr(WORD), **ports)  # type: ignore[arg-type]
    said = refusal(wrong, server)
    assert f"{server} refuses klear with the password in KLEAR_PASSWORD" in said
    assert WORD not in said


def orphans_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: list[dict[str, str]]
) -> list[str]:
    def taken_by(worker: str) -> dict[str, str]:
        return {"prefect.worker.name": worker, "prefect.worker.type": "process"}

    runs = [
        {"id": "1", "name": "ours", "labels": taken_by(worker_name())},
        {"id": "2", "name": "theirs", "labels": taken_by("klear-another-machine")},
        {"id": "3", "name": "not started", "labels": {"prefect.flow.id": "4"}},
        {"id": "5", "name": "of the klear before", "labels": taken_by("ProcessWorker 1f0f85d7")},
    ]

    def post(_: Machine, path: str, __: Any) -> Any:
        return {f"work_pools/{prefect_api.POOL}/workers/filter": workers}.get(path, runs)

    monkeypatch.setattr(prefect_api, "post", post)
    return bury_orphans(Machine(home=tmp_path))


def test_runs_of_workers_on_other_machines_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = {"name": worker_name(), "status": "ONLINE"}
    others = {"name": "klear-another-machine", "status": "ONLINE"}
    assert orphans_of(monkeypatch, tmp_path, [ours, others]) == ["ours"]
    all_but_theirs = ["ours", "not started", "of the klear before"]
    assert orphans_of(monkeypatch, tmp_path, [ours]) == all_but_theirs
    gone = {**others, "status": "OFFLINE"}
    assert orphans_of(monkeypatch, tmp_path, [gone]) == all_but_theirs
