"""Where things lie and who is told what, from KLEAR_* variables; no message repeats a secret. And
files that are there whole or not at all."""

import threading
from pathlib import Path

import pytest

from klear.configs.files import replace_text
from klear.configs.machine import DATABASES, Machine, find_home, load_machine, server_environment
from klear.configs.settings.explain import ConfigError

WORD = "twelve-letters-and-more"
DATABASE_WORD = "the-word-of-the-database"


@pytest.fixture(autouse=True)
def _clean_environment(own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KLEAR_HOME")
    for name in (
        "CREDENTIALS_DIRECTORY", "PGPASSWORD", "MLFLOW_SERVER_ALLOWED_HOSTS", *DATABASES.values()
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def machine_of(monkeypatch: pytest.MonkeyPatch, **variables: object) -> Machine:
    for name, value in variables.items():
        monkeypatch.setenv(f"KLEAR_{name.upper()}", str(value))
    return load_machine()


def refused(monkeypatch: pytest.MonkeyPatch, **variables: object) -> str:
    with pytest.raises(ConfigError) as caught:
        machine_of(monkeypatch, **variables)
    return str(caught.value)


def test_home_is_the_nearest_klear_folder_upwards_or_here(tmp_path: Path):
    assert find_home(tmp_path) == tmp_path / ".klear"
    inner = tmp_path / "a" / "b"
    for folder in (tmp_path, tmp_path / "a"):
        (folder / ".klear").mkdir(parents=True)
        assert find_home(inner) == folder / ".klear"


def test_folders_and_addresses_follow_home_and_ports(monkeypatch, tmp_path: Path):
    machine = machine_of(monkeypatch, home="here", prefect_port=1234, mlflow_port=2345)
    assert (machine.home, machine.store) == (tmp_path / "here", tmp_path / "here" / "store")
    database = server_environment(machine, "mlflow")["MLFLOW_BACKEND_STORE_URI"]
    assert database == f"sqlite:///{tmp_path}/here/mlflow/mlflow.db"
    assert machine.prefect_url == "http://127.0.0.1:1234"
    assert machine.mlflow_url == "http://127.0.0.1:2345"
    assert machine_of(monkeypatch, store=tmp_path / "far").store == tmp_path / "far"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"shared": "bucket/folder"}, "KLEAR_SHARED: bucket/folder is no address; write s3://"),
        ({"store": "s3://a/b", "shared": "s3://a/c"}, "KLEAR_STORE: s3:/a/b is no local folder"),
        ({"store": f"sftp://me:{WORD}@host/x"}, "KLEAR_SHARED: the address holds a password; lea"),
        ({"mlflow_port": 70_000}, "KLEAR_MLFLOW_PORT: Input should be less than or equal"),
        ({"stoer": "/elsewhere"}, "KLEAR_STOER: there is no such variable; did you mean KLEAR_STO"),
        ({"password": "short"}, "KLEAR_PASSWORD: Value should have at least 12 items"),
        ({"database": f"postgresql://me:{WORD}@h"}, "KLEAR_DATABASE: set PREFECT_API_DATABASE_CON"),
        ({"secrets": "/nowhere"}, "KLEAR_SECRETS: /nowhere is no folder"),
        ({"mlflow_url": f"http://me:{WORD}@s:4271"}, "KLEAR_MLFLOW_URL: must hold no user, pass"),
        ({"mlflow_url": "services:4271"}, "KLEAR_MLFLOW_URL: services:4271 must start with http"),
    ],
)
def test_a_wrong_variable_is_named_without_its_secret(monkeypatch, variables, expected):
    message = refused(monkeypatch, **variables)
    assert expected in message
    assert WORD not in message


OPEN, LOOPBACK = ("0.0.0.0", "::", "10.0.0.5", "example.org"), ("127.0.1.7", "localhost", "::1")


def test_servers_open_to_the_network_need_a_password(monkeypatch):
    for host in LOOPBACK:
        assert machine_of(monkeypatch, host=host).host == host
    for host in OPEN:
        assert "set KLEAR_PASSWORD" in refused(monkeypatch, host=host)
    for host in OPEN:
        assert machine_of(monkeypatch, host=host, password=WORD).host == host


@pytest.mark.parametrize(
    "variables",
    [
        {"prefect_port": 1234, "gpu_slots": 3, "form_profile": "h/mine.yaml"},
        {"store": "s3://bucket/results"},
        {"prefect_url": "http://services:4271/api/"},
        {"host": "10.1.2.3", "password": WORD, "user": "me"},
    ],
)
def test_a_child_with_the_environment_sees_the_same_machine(monkeypatch, tmp_path, variables):
    machine = machine_of(monkeypatch, home=tmp_path / "h", **variables)
    environment = machine.environment()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    assert load_machine() == machine
    folders = {v for n, v in environment.items() if v.startswith("/") and n != "PREFECT_UI_API_URL"}
    assert all(Path(folder).is_relative_to(tmp_path / "h") for folder in folders)


def test_a_server_elsewhere_is_used_and_not_started_and_loopback_has_no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    assert load_machine().is_here("prefect")
    machine = machine_of(monkeypatch, prefect_url="http://services:4271/api/")
    assert [machine.is_here(server) for server in ("prefect", "mlflow")] == [False, True]
    environment = machine.environment()
    assert environment["PREFECT_API_URL"] == "http://services:4271/api"
    assert {"intranet.example", "127.0.0.1", "localhost"} <= set(environment["NO_PROXY"].split(","))


def test_variables_of_others_are_theirs(monkeypatch):
    for name in ("KLEAR_OPENAI_KEY", "KLEAR_PREFECT_SERVICE_PORT", "KLEAR_MLFLOW_PORT_5000_TCP"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:5000")
    assert load_machine() == Machine()


@pytest.mark.parametrize("place", ["KLEAR_SECRETS", "CREDENTIALS_DIRECTORY"])
def test_secrets_are_files_where_containers_and_systemd_put_them(monkeypatch, tmp_path, place):
    (tmp_path / "klear_password").write_text(f"{WORD}\n")
    (tmp_path / "klear_database_password").write_text(f"{DATABASE_WORD}\n")
    monkeypatch.setenv(place, str(tmp_path))
    machine = load_machine()
    assert machine.password.get_secret_value() == WORD
    assert machine.database_password.get_secret_value() == DATABASE_WORD
    said_aloud = machine_of(monkeypatch, password="what-is-said-aloud-wins").password
    assert said_aloud.get_secret_value() == "what-is-said-aloud-wins"


def test_mlflow_answers_to_its_own_names_only(monkeypatch):
    shared = machine_of(monkeypatch, host="10.1.2.3", password=WORD)
    allowed = server_environment(shared, "mlflow")["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {"10.1.2.3", "10.1.2.3:*", "127.0.0.1:*"} <= set(allowed)
    assert "*" not in allowed


def test_two_that_write_one_file_at_once_both_succeed_and_leave_one_text_whole(tmp_path: Path):
    path, texts, failed = tmp_path / "plan.txt", ["a" * 5_000, "b" * 5_000], []

    def write(text: str) -> None:
        try:
            for _ in range(200):
                replace_text(path, text)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_text() in texts
    assert [p.name for p in tmp_path.iterdir()] == ["plan.txt"]
