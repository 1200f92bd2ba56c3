"""Each check finds its trouble and says the fix.

A Ray cluster that is there is asked in tests/cluster/test_parts.py.
"""

import socket
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from processes import free_ports

from klear.configs.machine import Machine
from klear.flows.cockpit import doctor
from klear.flows.cockpit.doctor import ask, disk, gpu, server, versions
from klear.tasks.store.shared import ObjectStore
from tests.s3_server import s3_server, signed_on


def test_every_version_that_differs_is_named_with_the_fix(monkeypatch, tmp_path):
    lock = tmp_path / "requirements-cpu.lock"
    lock.write_text(
        "# comment\n--extra-index-url https://example.org\ntorch==2.13.0+cpu\ntrl==1.16.0 ; a\n"
        "ray[default]==2.60 \\\n    --hash=sha256:abc\nmlflow==3.17.2\n"
    )
    (tmp_path / "requirements-cpu-test.lock").write_text("moto==5.2.5\nruff==0.17.5\n")
    installed = {"torch": "2.13.0+cpu", "trl": "1.16.0", "mlflow": "3.17.2", "ray": "2.60"}

    def version(name: str) -> str:
        number = installed.get(name)
        if number is None:
            raise PackageNotFoundError(name)
        return number

    monkeypatch.setattr(doctor, "lock_file", lambda: lock)
    monkeypatch.setattr(doctor, "version", version)
    assert versions().startswith("as in requirements-cpu.lock")
    installed |= {"torch": "2.13.0+cu130", "ray": "2.61"}
    del installed["trl"]
    with pytest.raises(RuntimeError) as caught:
        versions()
    assert str(caught.value) == (
        "torch is 2.13.0+cu130 (locked: 2.13.0+cpu); trl is missing (locked: 1.16.0); "
        "ray is 2.61 (locked: 2.60); fix: pip install --no-deps -r requirements-cpu.lock"
    )
    installed |= {"torch": "2.13.0+cpu", "ray": "2.60", "trl": "1.16.0", "moto": "5.2.4"}
    with pytest.raises(RuntimeError) as caught:  # ruff, too, is for tests alone and may be missing
        versions()
    assert str(caught.value) == (
        "moto is 5.2.4 (locked: 5.2.5); fix: pip install --no-deps -r requirements-cpu-test.lock"
    )


def test_a_taken_port_and_little_disk_space_are_bad(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port, (own,) = other.getsockname()[1], free_ports(1)
        machine = Machine(home=tmp_path, prefect_port=port, mlflow_port=own)
        with pytest.raises(RuntimeError, match=f"port {port} is in use: set KLEAR_PREFECT_PORT"):
            server(machine, "prefect")
        assert "is free" in server(machine, "mlflow")
    usage = SimpleNamespace(free=50e9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert disk(tmp_path / "not" / "yet" / "there") == f"50 GB free at {tmp_path}"
    usage.free = 1e9
    with pytest.raises(RuntimeError, match=f"1 GB free at {tmp_path}; 5 GB are needed"):
        disk(tmp_path)


@pytest.mark.parametrize(("script", "lock", "good", "message"), [
    ("", "gpu", True, "none; the tiny profile runs without"),
    ('echo "Driver/library version mismatch" >&2; exit 9', "gpu", False, "version mismatch"),
    ('echo "NVIDIA H200, 143771 MiB"', "cpu", False, "torch is a CPU build"),
    ('echo "NVIDIA H200, 143771 MiB"', "gpu", True, "NVIDIA H200"),
])  # fmt: skip
def test_a_gpu_needs_a_driver_and_a_torch_that_can_use_it(
    monkeypatch, tmp_path, script, lock, good, message
):
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if script else str(tmp_path))
    monkeypatch.setattr(doctor, "lock_file", lambda: Path(f"requirements-{lock}.lock"))
    with nullcontext() if good else pytest.raises(RuntimeError, match=message):
        assert message in gpu()


def test_one_bad_check_fails_the_whole(monkeypatch, capsys):
    def bad() -> str:
        raise RuntimeError("1 GB")

    for last, code in ((lambda: "50 GB", 0), (bad, 1)):
        named = [("memory", lambda: "plenty"), ("disk", last)]
        monkeypatch.setattr(doctor, "checks", lambda _, named=named: dict(named))
        assert doctor.doctor() == code
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["✓", "✓", "✓", "✗"]


def test_a_store_that_takes_results_is_left_as_it_was_and_one_that_does_not_answer_is_given_up(
    monkeypatch,
):
    with s3_server() as address:
        signed_on(monkeypatch, address)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word-of-the-store")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with suppress(FileExistsError):  # a later server of one process knows those of the first
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir("there")
        answer = ask("store", "s3://there/results")
        assert answer.strip() == "s3://there/results: written, read, removed"
        assert ObjectStore("s3://there").sizes() == {}
        with pytest.raises(RuntimeError, match=r"(?s)misspelt.*check KLEAR_STORE"):
            ask("store", "s3://misspelt/results")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setitem(doctor.SECONDS, "store", 3.0)
    with pytest.raises(RuntimeError, match=r"no answer in 3 s; .*AWS_ENDPOINT_URL_S3") as caught:
        ask("store", "s3://there")
    assert "word-of-the-store" not in str(caught.value)


def test_a_cluster_that_is_not_there_is_bad_with_the_command_that_starts_a_node() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(RuntimeError, match=r"(?s)ray start --address=HOST:PORT") as caught:
        ask("ray", address)
    assert str(caught.value).startswith(f"{address}: ")
