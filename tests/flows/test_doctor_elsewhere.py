"""What the doctor says of an object store and of a Ray cluster: usable, or the fix.

A cluster that is there is asked in tests/cluster/test_busy_cluster.py.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from configs.machine import Machine
from flows import doctor, doctor_elsewhere
from flows.doctor import check_elsewhere
from flows.doctor_elsewhere import ask
from tasks.object_store import ObjectStore


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
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
    yield f"http://{host}:{port}"
    server.stop()


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_store_that_takes_results_is_good_and_left_as_it_was(
    tmp_path: Path, endpoint: str
) -> None:
    (check,) = check_elsewhere(Machine(home=tmp_path, shared="s3://there/results"))
    assert check.ok, check.detail
    assert str(check) == "✓ store      s3://there/results: written, read, removed"
    assert ObjectStore("s3://there").names() == []


def test_a_bucket_that_is_not_there_is_named(tmp_path: Path, endpoint: str) -> None:
    (check,) = check_elsewhere(Machine(home=tmp_path, shared="s3://misspelt/results"))
    assert not check.ok
    assert "there is no bucket misspelt" in check.detail
    assert "make it, or correct KLEAR_STORE" in check.detail


def test_keys_that_may_not_write_are_said_to_be_too_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(ObjectStore, "write", refuse)
    said = doctor_elsewhere.store_trouble("memory://there")
    assert said == "memory://there: Access Denied; the keys must allow to write, read and delete"


def test_a_store_that_does_not_answer_costs_seconds_and_its_keys_stay_out(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setattr(doctor, "STORE_S", 8.0)
    began = time.monotonic()
    (check,) = check_elsewhere(Machine(home=tmp_path, shared="s3://there"))
    assert time.monotonic() - began < 30
    assert not check.ok
    assert "AWS_ENDPOINT_URL_S3" in check.detail
    assert "word-of-the-store" not in check.detail


def test_a_cluster_that_is_not_there_is_bad_with_the_command_that_starts_a_node(
    tmp_path: Path,
) -> None:
    address = f"127.0.0.1:{closed_port()}"
    began = time.monotonic()
    (check,) = check_elsewhere(Machine(home=tmp_path, ray_address=address))
    assert time.monotonic() - began < 30
    assert not check.ok
    assert f"no Ray cluster at KLEAR_RAY_ADDRESS={address}" in check.detail
    assert "ray start --address=HOST:PORT" in check.detail


def test_a_cluster_that_asks_for_a_token_says_where_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho no Ray cluster\necho 'InvalidAuthToken: missing' >&2\nexit 1"
    )
    python.chmod(0o755)
    monkeypatch.setattr(doctor_elsewhere.sys, "executable", str(python))
    good, said = ask("ray", "head:6379", 30)
    assert not good
    assert (
        said == "head:6379 asks for a token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here"
    )


def test_a_machine_alone_is_asked_neither(tmp_path: Path) -> None:
    assert list(check_elsewhere(Machine(home=tmp_path))) == []
