"""How servers are called and asked: no secret on a command line, no more in an environment than
needed, and who is refused is told what to set."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from klear.configs.machine import DATABASES, Machine
from klear.flows.cockpit import servers
from klear.flows.cockpit.servers import WORKER, ServersError, crash_orphans, refusal, server_command

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


def machine(home: Path, **changed: Any) -> Machine:
    secrets = {"password": SecretStr(WORD), "database_password": SecretStr(DATABASE_WORD)}
    return Machine(**{"home": home, "store": home / "store", **secrets, **changed})


@pytest.mark.parametrize("name", ["prefect", "mlflow", "worker"])
def test_no_command_line_holds_a_secret(tmp_path, name):
    here = machine(tmp_path)
    words = " ".join(server_command(here, name))
    assert WORD not in words
    assert DATABASE_WORD not in words


def test_a_worker_does_not_inherit_the_way_into_the_database(monkeypatch, tmp_path):
    address = f"postgresql+psycopg2://klear:{DATABASE_WORD}@db/klear"
    for name in (*DATABASES.values(), "PGPASSWORD", "KLEAR_DATABASE_PASSWORD"):
        monkeypatch.setenv(name, address)
    server = servers.process_environment(machine(tmp_path), "mlflow")
    assert server[DATABASES["mlflow"]] == address
    assert server["PGPASSWORD"] == DATABASE_WORD
    seen = servers.process_environment(machine(tmp_path), "worker")
    assert not any(DATABASE_WORD in value for value in seen.values())
    assert seen["KLEAR_PASSWORD"] == WORD  # it talks to the servers


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_who_is_refused_is_told_what_to_set(tmp_path, server, monkeypatch):
    refuse = httpx.MockTransport(lambda _: httpx.Response(HTTPStatus.UNAUTHORIZED))
    monkeypatch.setattr(servers, "_http", lambda *_: httpx.Client(transport=refuse))
    message = refusal(Machine(home=tmp_path, password=SecretStr(WORD)), server)
    assert f"{server} refuses klear and asks for a password: set KLEAR_PASSWORD" in message
    assert WORD not in message


@pytest.mark.parametrize(
    ("status", "crashed"), [("OFFLINE", ["ours", "new"]), ("ONLINE", ["ours"])]
)
def test_runs_of_workers_on_other_machines_are_left_alone(monkeypatch, tmp_path, status, crashed):
    worker_label = "prefect.worker.name"
    runs = [
        {"id": "ours", "labels": {worker_label: WORKER}},
        {"id": "theirs", "labels": {worker_label: "klear-another-machine"}},
        {"id": "new", "labels": {}},  # taken by a worker that has not written its name yet
    ]
    workers = [{"name": "klear-another-machine", "status": status}]
    questions: list[str] = []

    def post(_: Machine, path: str, __: Any) -> Any:
        questions.append(path)
        return workers if "work_pools" in path else runs

    monkeypatch.setattr(servers, "post", post)
    crash_orphans(Machine(home=tmp_path))
    assert questions[2:] == [f"flow_runs/{run}/set_state" for run in crashed]


def test_a_registration_that_hangs_is_ended_and_said(monkeypatch, tmp_path):
    here = Machine(home=tmp_path, prefect_url="http://of.another", mlflow_url="http://of.another")
    for name, answer in (("load_machine", here), ("refusal", ""), ("create_pool", None)):
        monkeypatch.setattr(servers, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(servers, "server_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(servers, "REGISTRATION_S", 0.2)
    with pytest.raises(ServersError, match=r"forms could not be registered.*timed out"):
        servers.up()
    assert servers.alive(here) == {}
