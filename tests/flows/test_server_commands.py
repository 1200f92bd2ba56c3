"""How servers and worker are called: no secret on a command line, no more in an environment than
needed, and a digest that tells when one must start anew."""

import stat
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from configs.machine import Machine
from flows import database, server_commands, servers
from flows.database import DatabaseError
from flows.server_commands import SERVED, process_environment, server_command, settings_digest
from flows.server_process import ServerProcess

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


def machine(home: Path, **changed: Any) -> Machine:
    known: dict[str, Any] = {
        "password": SecretStr(WORD),
        "database": SecretStr(f"postgresql://klear:{DATABASE_WORD}@db"),
    }
    return Machine(**{"home": home, "store": home / "store", **known, **changed})


@pytest.mark.parametrize("name", SERVED)
def test_no_command_line_holds_a_secret(tmp_path: Path, name: str) -> None:
    words = " ".join(server_command(machine(tmp_path), name))
    assert WORD not in words
    assert DATABASE_WORD not in words


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
    monkeypatch.setattr(server_commands, "prepare_database", lambda *_: None)
    here = machine(tmp_path, database=SecretStr("postgresql://us%40er@db"))
    server_commands.prepare(here, "mlflow", 0)
    config = ConfigParser()
    config.read(here.mlflow_auth)
    assert config["mlflow"]["database_uri"] == here.mlflow_database
    assert WORD not in here.mlflow_auth.read_text()
    assert "basic-auth" in server_command(here, "mlflow")
    first = process_environment(here, "mlflow")["MLFLOW_FLASK_SERVER_SECRET_KEY"]
    assert len(first) == 64
    assert process_environment(here, "mlflow")["MLFLOW_FLASK_SERVER_SECRET_KEY"] == first
    (key,) = here.mlflow_auth.parent.glob("*.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changed", "anew"),
    [
        ({}, set()),
        ({"worker_limit": 3}, {"worker"}),
        ({"password": SecretStr("another-long-password")}, {"prefect", "mlflow", "worker"}),
        ({"database": SecretStr("postgresql://klear@other")}, {"prefect", "mlflow"}),
        ({"mlflow_port": 5999}, {"mlflow", "worker"}),
        ({"form_profile": "replay"}, {"worker"}),
    ],
)
def test_only_what_reads_a_setting_starts_anew(
    tmp_path: Path, changed: dict[str, Any], anew: set[str]
) -> None:
    before, after = machine(tmp_path), machine(tmp_path, **changed)
    assert {n for n in SERVED if settings_digest(before, n) != settings_digest(after, n)} == anew


@pytest.mark.parametrize(("under_way", "kept"), [(0, False), (2, True)])
def test_a_worker_with_runs_under_way_keeps_its_settings_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, under_way: int, kept: bool
) -> None:
    here = machine(tmp_path)
    old = ServerProcess(name="worker", pid=1, started="-", log=tmp_path, settings="other")
    monkeypatch.setattr(servers, "alive", lambda _: {"worker": old})
    monkeypatch.setattr(servers, "runs_of", lambda worker: {old.pid: under_way}[worker.pid])
    said: list[str] = []
    assert servers._outdated(here, said.append) == (set() if kept else {"worker"})
    assert ["2 runs are under way" in line for line in said] == ([True] if kept else [])


def test_a_database_that_is_away_is_named_without_its_password(tmp_path: Path) -> None:
    here = machine(tmp_path, database=SecretStr(f"postgresql://me:{DATABASE_WORD}@127.0.0.1:1"))
    with pytest.raises(DatabaseError, match=r"Postgres at me@127\.0\.0\.1:1: .*refused") as caught:
        database.prepare_database(here, "prefect", wait_s=0)
    assert DATABASE_WORD not in str(caught.value)
