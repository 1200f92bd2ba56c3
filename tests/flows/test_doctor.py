"""Each check finds its trouble and says the fix.

A Ray cluster that is there is asked in tests/cluster/test_busy_cluster.py.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from moto.server import ThreadedMotoServer
from processes import free_ports
from pydantic import SecretStr

from configs.machine import Machine
from flows.servers import doctor
from flows.servers.doctor import (
    ask,
    check_database,
    check_disk,
    check_gpu,
    check_server,
    check_versions,
)
from tasks.store.shared import ObjectStore


def installed(**versions: str):
    def find(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return find


def test_every_version_that_differs_is_named_with_the_fix(tmp_path: Path) -> None:
    lock = tmp_path / "requirements-cpu.lock"
    lock.write_text(
        "# comment\n--extra-index-url https://example.org\ntorch==2.13.0+cpu\ntrl==1.16.0 ; a\n"
        "ray[default]==2.60 \\\n    --hash=sha256:abc\nmlflow==3.17.2\n"
    )
    right = {"trl": "1.16.0", "mlflow": "3.17.2", "ray": "2.60"}
    assert check_versions(lock, installed(torch="2.13.0+cpu", **right)).ok
    check = check_versions(lock, installed(torch="2.13.0+cu130", mlflow="3.17.2", ray="2.61"))
    assert not check.ok
    assert "torch is 2.13.0+cu130 (locked: 2.13.0+cpu)" in check.detail
    assert "trl is missing (locked: 1.16.0); ray is 2.61 (locked: 2.60)" in check.detail
    assert "mlflow" not in check.detail
    assert "pip install --no-deps -r requirements-cpu.lock" in check.detail


def test_a_taken_port_names_the_variable_and_a_free_one_who_may_come(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        machine = Machine(home=tmp_path, prefect_port=port, mlflow_port=free_ports(1)[0])
        taken, free = (check_server(machine, name) for name in ("prefect", "mlflow"))
    assert not taken.ok
    assert f"port {port} is in use" in taken.detail
    assert "KLEAR_PREFECT_PORT" in taken.detail
    assert free.ok
    assert "no password" in free.detail


@pytest.mark.parametrize(("free_gb", "good"), [(1, False), (50, True)])
def test_little_disk_space_is_bad(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_gb: int, good: bool
) -> None:
    usage = SimpleNamespace(free=free_gb * 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    check = check_disk(tmp_path / "not" / "yet" / "there")
    assert check.ok is good
    assert f"{free_gb} GB free at {tmp_path}" in check.detail


@pytest.mark.parametrize(
    ("script", "lock", "good", "said"),
    [
        ("", "gpu", True, "none; the tiny profile runs without"),
        ('echo "Driver/library version mismatch" >&2; exit 9', "gpu", False, "version mismatch"),
        ('echo "NVIDIA H200, 143771 MiB"', "cpu", False, "torch is a CPU build"),
        ('echo "NVIDIA H200, 143771 MiB"', "gpu", True, "NVIDIA H200"),
    ],
)
def test_a_gpu_needs_a_driver_and_a_torch_that_can_use_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, lock: str, good: bool, said: str
) -> None:
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.setattr(doctor, "lock_file", lambda: Path(f"requirements-{lock}.lock"))
    check = check_gpu()
    assert check.ok is good
    assert said in check.detail


def test_one_bad_check_fails_the_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for good in (True, False):
        found = [doctor.Check("disk", good, "1 GB"), doctor.Check("memory", True, "plenty")]
        monkeypatch.setattr(doctor, "checks", lambda _, found=found: iter(found))
        assert doctor.doctor(Machine(home=tmp_path)) == (0 if good else 1)
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["✓", "✓", "✗", "✓"]


def test_a_database_that_is_away_is_bad_and_its_password_stays_out(tmp_path: Path) -> None:
    address = SecretStr(f"postgresql://me:word-of-the-database@127.0.0.1:{free_ports(1)[0]}")
    check = check_database(Machine(home=tmp_path, database=address), "prefect")
    assert not check.ok
    assert "refused" in check.detail
    assert "word-of-the-database" not in str(check)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 with the bucket `there`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "word-of-the-store"),
        ("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}"), ("NO_PROXY", "127.0.0.1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    with suppress(FileExistsError):  # a later server of one process knows the buckets of the first
        ObjectStore("s3://there")._fs.mkdir("there")
    yield
    server.stop()


def test_a_store_that_takes_results_is_good_and_left_as_it_was(bucket: None) -> None:
    check = ask("store", "s3://there/results")
    assert str(check) == "✓ store      s3://there/results: written, read, removed"
    assert ObjectStore("s3://there").names() == []
    check = ask("store", "s3://misspelt/results")
    assert not check.ok
    assert "misspelt" in check.detail
    assert "check KLEAR_STORE" in check.detail


def test_a_store_that_does_not_answer_is_given_up_and_its_keys_stay_out(
    bucket: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setitem(doctor.SECONDS, "store", 8.0)
    check = ask("store", "s3://there")
    assert not check.ok
    assert "AWS_ENDPOINT_URL_S3" in check.detail
    assert "word-of-the-store" not in check.detail


def test_a_cluster_that_is_not_there_is_bad_with_the_command_that_starts_a_node() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    check = ask("ray", address)
    assert not check.ok
    assert check.detail.startswith(f"{address}: ")
    assert "ray start --address=HOST:PORT" in check.detail
