"""Each check finds its trouble and says the fix."""

import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import SecretStr

from configs.machine import Machine
from flows import doctor
from flows.doctor import (
    check_access,
    check_database,
    check_disk,
    check_gpu,
    check_ports,
    check_servers_elsewhere,
    check_versions,
    pins,
)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def installed(**versions: str):
    def find(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return find


def test_pins_are_read_and_everything_else_is_skipped() -> None:
    lock = (
        "# comment\n--extra-index-url https://example.org\ntorch==2.13.0+cpu\n"
        'uvloop==1.2 ; sys_platform != "win32"\nray[default]==2.60 \\\n    --hash=sha256:abc\n'
    )
    assert pins(lock) == {"torch": "2.13.0+cpu", "uvloop": "1.2", "ray": "2.60"}


def test_a_matching_environment_is_good(tmp_path: Path) -> None:
    lock = tmp_path / "requirements-cpu.lock"
    lock.write_text("torch==2.13.0\ntrl==1.16.0\n")
    check = check_versions(lock, installed(torch="2.13.0+cpu", trl="1.16.0"))
    assert check.ok
    assert "requirements-cpu.lock" in check.detail


def test_every_mismatch_is_named_with_the_fix(tmp_path: Path) -> None:
    lock = tmp_path / "requirements-cpu.lock"
    lock.write_text("torch==2.13.0+cpu\ntrl==1.16.0\nmlflow==3.17.2\n")
    check = check_versions(lock, installed(torch="2.13.0+cu130", mlflow="3.17.2"))
    assert not check.ok
    assert "torch is 2.13.0+cu130 (locked: 2.13.0+cpu)" in check.detail
    assert "trl is missing (locked: 1.16.0)" in check.detail
    assert "mlflow" not in check.detail
    assert "pip install --no-deps -r requirements-cpu.lock" in check.detail


def test_a_missing_lock_is_bad(tmp_path: Path) -> None:
    assert not check_versions(tmp_path / "requirements-cpu.lock", installed()).ok


def test_a_taken_port_names_the_variable(tmp_path: Path, taken_port: int) -> None:
    machine = Machine(home=tmp_path, prefect_port=taken_port, mlflow_port=free_port())
    prefect, mlflow = check_ports(machine)
    assert not prefect.ok
    assert f"port {taken_port} is in use" in prefect.detail
    assert "KLEAR_PREFECT_PORT" in prefect.detail
    assert mlflow.ok


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free_gb", "good"), [(1, False), (50, True)])
def test_little_disk_space_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_gb: int, good: bool
) -> None:
    usage = Usage(total=100 * 10**9, used=0, free=free_gb * 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    check = check_disk(tmp_path / "not" / "yet" / "there")
    assert check.ok is good
    assert f"{free_gb} GB free at {tmp_path}" in check.detail


def fake_nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_no_gpu_is_fine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check = check_gpu()
    assert check.ok
    assert check.detail.startswith("none")


def test_a_broken_driver_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvidia_smi(tmp_path, 'echo "Driver/library version mismatch" >&2; exit 9')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    check = check_gpu()
    assert not check.ok
    assert "Driver/library version mismatch" in check.detail


@pytest.mark.parametrize(("lock", "good"), [("cpu", False), ("gpu", True)])
def test_a_gpu_needs_a_torch_that_can_use_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lock: str, good: bool
) -> None:
    fake_nvidia_smi(tmp_path, 'echo "NVIDIA H200, 143771 MiB"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(doctor, "lock_file", lambda: Path(f"requirements-{lock}.lock"))
    check = check_gpu()
    assert check.ok is good
    assert "NVIDIA H200" in check.detail


@pytest.mark.parametrize("bad", [True, False])
def test_one_bad_check_fails_the_whole(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    bad: bool,
) -> None:
    found = [doctor.Check("disk", True, "plenty"), doctor.Check("memory", not bad, "1 GB")]
    monkeypatch.setattr(doctor, "checks", lambda _: iter(found))
    assert doctor.doctor(Machine(home=tmp_path)) == (1 if bad else 0)
    marks = [line[0] for line in capsys.readouterr().out.splitlines()]
    assert marks == ["✓", "✗" if bad else "✓"]


def test_a_database_that_is_away_is_bad_and_its_password_stays_out(tmp_path: Path) -> None:
    address = SecretStr(f"postgresql://me:word-of-the-database@127.0.0.1:{free_port()}")
    found = list(check_database(Machine(home=tmp_path, database=address)))
    assert [check.ok for check in found] == [False, False]
    assert all("refused" in check.detail for check in found)
    assert not any("word-of-the-database" in str(check) for check in found)


def test_a_server_elsewhere_that_is_away_is_bad(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (check,) = check_servers_elsewhere(Machine(home=tmp_path, prefect_url=url))
    assert not check.ok
    assert url in check.detail


def test_who_may_reach_the_servers_is_said(tmp_path: Path) -> None:
    assert "127.0.0.1 only, no password" in check_access(Machine(home=tmp_path)).detail
    exposed = Machine(home=tmp_path, host="0.0.0.0", password=SecretStr("a-word-of-letters"))
    assert "password of klear" in check_access(exposed).detail
