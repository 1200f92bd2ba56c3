"""Where things lie and which ports are used, from KLEAR_* variables."""

from pathlib import Path

import pytest

from configs.explain import ConfigError
from configs.machine import Machine, find_home, load_machine


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Machine.model_fields:
        monkeypatch.delenv(f"KLEAR_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)


def test_home_is_the_nearest_klear_folder_upwards(tmp_path: Path) -> None:
    (tmp_path / ".klear").mkdir()
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_home(inner) == tmp_path / ".klear"
    (tmp_path / "a" / ".klear").mkdir()
    assert find_home(inner) == tmp_path / "a" / ".klear"


def test_home_is_made_here_if_no_parent_has_one(tmp_path: Path) -> None:
    assert find_home(tmp_path) == tmp_path / ".klear"


def test_the_store_lies_in_home_unless_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "h"))
    assert load_machine().store == tmp_path / "h" / "store"
    monkeypatch.setenv("KLEAR_STORE", str(tmp_path / "elsewhere"))
    assert load_machine().store == tmp_path / "elsewhere"


def test_relative_folders_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KLEAR_HOME", "here")
    machine = load_machine()
    assert machine.home == tmp_path / "here"
    assert machine.mlflow_database == f"sqlite:///{tmp_path}/here/mlflow/mlflow.db"


@pytest.mark.parametrize("variable", ["KLEAR_HOME", "KLEAR_STORE"])
def test_a_file_is_no_folder(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=rf"{variable}: .*/file is a file; name a folder"):
        load_machine()


@pytest.mark.parametrize("address", ["bucket/folder", "s3://", "://bucket"])
def test_a_shared_store_has_an_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_SHARED", address)
    with pytest.raises(ConfigError, match=r"KLEAR_SHARED: .* is no address; write s3://"):
        load_machine()


def test_urls_follow_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_PREFECT_PORT", "1234")
    monkeypatch.setenv("KLEAR_MLFLOW_PORT", "2345")
    machine = load_machine()
    assert machine.prefect_api_url == "http://127.0.0.1:1234/api"
    assert machine.mlflow_uri == "http://127.0.0.1:2345"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.org"])
def test_hosts_beyond_loopback_are_refused(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("KLEAR_HOST", host)
    with pytest.raises(ConfigError, match=r"KLEAR_HOST: .*127\.0\.0\.1"):
        load_machine()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.1.7", "localhost", "::1"])
def test_loopback_hosts_are_accepted(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("KLEAR_HOST", host)
    assert load_machine().host == host


def test_every_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_PREFECT_PORT", "many")
    monkeypatch.setenv("KLEAR_MLFLOW_PORT", "70000")
    with pytest.raises(ConfigError) as caught:
        load_machine()
    assert caught.value.problems == (
        "KLEAR_PREFECT_PORT: 'many' is no whole number",
        "KLEAR_MLFLOW_PORT: '70000' must be at most 65535",
    )


def test_two_servers_need_two_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_PREFECT_PORT", "5271")
    with pytest.raises(ConfigError, match="both 5271"):
        load_machine()


def test_every_folder_in_the_environment_lies_in_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "h"))
    found = load_machine().environment()
    assert found.pop("PREFECT_UI_API_URL") == "/api"  # below the page, not a folder
    folders = {n: v for n, v in found.items() if v.startswith("/")}
    assert {"PREFECT_HOME", "PREFECT_RESULTS_LOCAL_STORAGE_PATH", "KLEAR_STORE"} <= set(folders)
    assert all(Path(folder).is_relative_to(tmp_path / "h") for folder in folders.values())


def test_a_child_with_the_environment_sees_the_same_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("KLEAR_PREFECT_PORT", "1234")
    machine = load_machine()
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    assert load_machine() == machine


def test_proxies_are_kept_but_never_used_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    skipped = load_machine().environment()["NO_PROXY"].split(",")
    assert {"intranet.example", "127.0.0.1", "localhost"} <= set(skipped)


def test_a_store_address_is_shared_and_copies_lie_in_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    monkeypatch.setenv("KLEAR_STORE", "s3://bucket/results")
    machine = load_machine()
    assert machine.shared == "s3://bucket/results"
    assert machine.store == tmp_path / "store"
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    again = load_machine()
    assert (again.shared, again.store) == (machine.shared, machine.store)


def test_a_misspelt_variable_is_named_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEAR_STOER", "/elsewhere")

    with pytest.raises(ConfigError, match=r"KLEAR_STOER: .*did you mean KLEAR_STORE"):
        load_machine()


@pytest.mark.parametrize(
    "name", ["KLEAR_OPENAI_KEY", "KLEAR_PREFECT_SERVICE_PORT", "KLEAR_MLFLOW_PORT_5000_TCP"]
)
def test_variables_of_others_are_theirs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:5000")

    assert load_machine() == Machine()
