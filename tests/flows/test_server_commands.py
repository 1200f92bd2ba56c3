"""How servers are called and asked: no secret on a command line, no more in an environment than
needed, and who is refused is told what to set."""

import urllib.error
from configparser import ConfigParser
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from configs.machine import Machine
from flows.servers import commands, prefect_api
from flows.servers.commands import (
    SERVED,
    prepare,
    process_environment,
    server_command,
    settings_digest,
)
from flows.servers.prefect_api import ServersError, crash_orphans, refusal, worker_name

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


def machine(home: Path, **changed: Any) -> Machine:
    known: dict[str, Any] = {
        "password": SecretStr(WORD),
        "database": SecretStr(f"postgresql://klear:{DATABASE_WORD}@db"),
    }
    return Machine(**{"home": home, "store": home / "store", **known, **changed})


@pytest.mark.parametrize("name", SERVED)
def test_no_command_line_holds_a_secret_and_other_settings_start_anew(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine(tmp_path)
    words = " ".join(server_command(here, name))
    assert WORD not in words
    assert DATABASE_WORD not in words
    before = settings_digest(here, name)
    monkeypatch.setenv("NO_PROXY", "another-shell")
    assert settings_digest(machine(tmp_path), name) == before
    other = machine(tmp_path, password=SecretStr("another-long-password"))
    assert settings_digest(other, name) != before


def test_a_worker_does_not_inherit_the_way_into_the_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KLEAR_DATABASE", f"postgresql://klear:{DATABASE_WORD}@db")
    monkeypatch.setenv("PGPASSWORD", DATABASE_WORD)
    seen = process_environment(machine(tmp_path), "worker")
    assert not any(DATABASE_WORD in value for value in seen.values())
    assert seen["KLEAR_PASSWORD"] == WORD  # it talks to the servers


def test_mlflow_checks_passwords_against_its_own_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "database_trouble", lambda *_, **__: "")
    here = machine(tmp_path, database=SecretStr("postgresql://us%40er@db"))
    prepare(here, "mlflow", 0)
    config = ConfigParser()
    config.read(here.mlflow_auth)
    assert config["mlflow"]["database_uri"] == here.mlflow_database
    assert WORD not in here.mlflow_auth.read_text()
    assert "basic-auth" in server_command(here, "mlflow")
    key = process_environment(here, "mlflow")["MLFLOW_FLASK_SERVER_SECRET_KEY"]
    assert len(key) == 64
    assert key == process_environment(here, "mlflow")["MLFLOW_FLASK_SERVER_SECRET_KEY"]


def test_a_database_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    here = machine(tmp_path, database=SecretStr(f"postgresql://me:{DATABASE_WORD}@127.0.0.1:1"))
    with pytest.raises(ServersError, match=r"Postgres at me@127\.0\.0\.1:1: .*refused") as caught:
        prepare(here, "prefect", wait_s=0)
    assert DATABASE_WORD not in str(caught.value)


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_who_is_refused_is_told_what_to_set(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise urllib.error.HTTPError("http://here", 401, "Unauthorized", Message(), None)

    monkeypatch.setattr(prefect_api, "_open", refuse)
    assert f"{server} asks for a password: set KLEAR_PASSWORD" in refusal(
        Machine(home=tmp_path), server
    )
    said = refusal(Machine(home=tmp_path, password=SecretStr(WORD)), server)
    assert f"{server} refuses klear with the password in KLEAR_PASSWORD" in said
    assert WORD not in said


@pytest.mark.parametrize(
    ("other", "crashed"),
    [("ONLINE", ["ours"]), ("OFFLINE", ["ours", "not started"])],
)
def test_runs_of_workers_on_other_machines_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other: str, crashed: list[str]
) -> None:
    workers = [
        {"name": worker_name(), "status": "ONLINE"},
        {"name": "klear-another-machine", "status": other},
    ]
    runs = [
        {"id": "1", "name": "ours", "labels": {"prefect.worker.name": worker_name()}},
        {"id": "2", "name": "theirs", "labels": {"prefect.worker.name": "klear-another-machine"}},
        {"id": "3", "name": "not started", "labels": {"prefect.flow.id": "4"}},
    ]

    def post(_: Machine, path: str, __: Any) -> Any:
        return workers if "workers" in path else runs

    monkeypatch.setattr(prefect_api, "post", post)
    assert crash_orphans(Machine(home=tmp_path)) == crashed
