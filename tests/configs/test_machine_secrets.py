"""Passwords, databases and servers elsewhere: what is accepted, and who is told what."""

from pathlib import Path

import pytest

from configs.explain import ConfigError
from configs.machine import Machine, load_machine
from configs.machine_environment import server_environment

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [*Machine.model_fields, "secrets"]:
        monkeypatch.delenv(f"KLEAR_{name.upper()}", raising=False)
    for name in ("CREDENTIALS_DIRECTORY", "PGPASSWORD", "MLFLOW_SERVER_ALLOWED_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Servers that others reach, on a Postgres."""
    monkeypatch.setenv("KLEAR_HOST", "10.1.2.3")
    monkeypatch.setenv("KLEAR_PASSWORD", WORD)
    monkeypatch.setenv("KLEAR_DATABASE", f"postgresql://klear:{DATABASE_WORD}@db")
    return load_machine()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_a_password_opens_the_servers_to_the_network(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("KLEAR_HOST", host)
    with pytest.raises(ConfigError, match="set KLEAR_PASSWORD"):
        load_machine()
    monkeypatch.setenv("KLEAR_PASSWORD", WORD)
    assert load_machine().host == host


@pytest.mark.parametrize("word", ["short", "a-long-one-with\x07bell"])
def test_a_password_that_is_too_weak_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv("KLEAR_PASSWORD", word)
    with pytest.raises(ConfigError) as caught:
        load_machine()
    assert caught.value.problems == ("KLEAR_PASSWORD: needs 12 printable characters or more",)


def test_secrets_are_files_where_containers_put_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "klear_password").write_text(f"{WORD}\n")
    monkeypatch.setenv("KLEAR_SECRETS", str(tmp_path))
    assert load_machine().password.get_secret_value() == WORD
    monkeypatch.setenv("KLEAR_PASSWORD", "what-is-said-aloud-wins")
    assert load_machine().password.get_secret_value() == "what-is-said-aloud-wins"


def test_systemd_credentials_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "klear_database").write_text(f"postgresql://klear:{DATABASE_WORD}@db\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    postgres = load_machine().postgres
    assert postgres is not None
    assert postgres.password == DATABASE_WORD


def test_a_folder_of_secrets_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_SECRETS", "/nowhere")
    with pytest.raises(ConfigError, match="KLEAR_SECRETS: /nowhere is no folder"):
        load_machine()


def test_clients_are_told_the_password_and_never_the_database(shared: Machine) -> None:
    told = shared.environment()
    assert told["PREFECT_API_AUTH_STRING"] == f"klear:{WORD}"
    assert (told["MLFLOW_TRACKING_USERNAME"], told["MLFLOW_TRACKING_PASSWORD"]) == ("klear", WORD)
    assert not any(DATABASE_WORD in value for value in told.values())
    assert not any(DATABASE_WORD in v for v in server_environment(shared, "worker").values())


@pytest.mark.parametrize(
    ("server", "variable", "driver"),
    [
        ("prefect", "PREFECT_API_DATABASE_CONNECTION_URL", "asyncpg"),
        ("mlflow", "MLFLOW_BACKEND_STORE_URI", "psycopg2"),
    ],
)
def test_a_server_gets_its_database_and_the_password_beside_it(
    shared: Machine, server: str, variable: str, driver: str
) -> None:
    told = server_environment(shared, server)
    assert told[variable] == f"postgresql+{driver}://klear@db:5432/klear_{server}"
    assert [name for name, value in told.items() if DATABASE_WORD in value] == ["PGPASSWORD"]


def test_servers_without_a_password_are_told_of_none() -> None:
    told = server_environment(load_machine(), "prefect") | server_environment(
        load_machine(), "mlflow"
    )
    assert not any("AUTH" in name or "PASSWORD" in name for name in told)


def test_mlflow_answers_to_its_own_names_only(shared: Machine) -> None:
    allowed = server_environment(shared, "mlflow")["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {"10.1.2.3", "10.1.2.3:*", "127.0.0.1:*"} <= set(allowed)
    assert "*" not in allowed


def test_a_server_elsewhere_is_used_and_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_machine().prefect_is_here
    monkeypatch.setenv("KLEAR_PREFECT_URL", "http://services:4271/api/")
    machine = load_machine()
    assert not machine.prefect_is_here
    assert machine.mlflow_is_here
    assert machine.environment()["PREFECT_API_URL"] == "http://services:4271/api"
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    assert load_machine() == machine


@pytest.mark.parametrize("url", [f"http://me:{WORD}@services:4271", "services:4271"])
def test_the_address_of_a_server_is_plain(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("KLEAR_MLFLOW_URL", url)
    with pytest.raises(ConfigError, match="KLEAR_MLFLOW_URL: must") as caught:
        load_machine()
    assert WORD not in str(caught.value)


@pytest.mark.parametrize("variable", ["KLEAR_STORE", "KLEAR_SHARED"])
def test_a_password_in_the_address_of_a_store_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, f"sftp://me:{WORD}@host/results")
    with pytest.raises(ConfigError, match=r"holds a password.*fsspec/conf\.json") as caught:
        load_machine()
    assert WORD not in str(caught.value)
    monkeypatch.setenv(variable, "sftp://me@host/results")
    assert load_machine().shared == "sftp://me@host/results"


def test_an_empty_shared_address_does_not_hide_the_one_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KLEAR_SHARED", "")
    monkeypatch.setenv("KLEAR_STORE", "s3://bucket/results")
    assert load_machine().shared == "s3://bucket/results"
    monkeypatch.setenv("KLEAR_SHARED", "s3://bucket/others")
    with pytest.raises(ConfigError, match="name two addresses"):
        load_machine()
