"""Results of a shared store without a stage that makes them, and servers to put them on."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import fsspec
import pytest
from gcp_storage_emulator.server import create_server
from moto.server import ThreadedMotoServer

from tasks.store.shared import SharedStore
from tasks.store.store import Artifact

KEY = "0123456789abcdef"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of an S3 server in this process."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@contextmanager
def gs_server(bucket: str) -> Iterator[str]:
    """The address of a server in this process that speaks as Google Cloud Storage does."""
    with create_server("127.0.0.1", 0, in_memory=True, default_bucket=bucket) as running:
        assert running._api._httpd
        yield f"http://127.0.0.1:{running._api._httpd.server_port}"


def signed_on(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    keys = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "ENDPOINT_URL_S3": server}
    for name, value in keys.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def new_bucket(of: object) -> str:
    """The address of a folder in a new bucket."""
    bucket = f"klear-{abs(hash(str(of)))}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/results"


def made(store: SharedStore, rows: str = "rows", key: str = KEY, **more: Any) -> Artifact:
    """A result of two files, published; `more` goes into the manifest."""
    work = store.work("collect", key)
    (work / "deep").mkdir(parents=True)
    (work / "rows.jsonl").write_text(rows)
    (work / "deep/more.txt").write_text("more")
    about = {"stage": "collect", "version": 1, "key": key, "settings": {}, "seconds": 1.0,
             "pipeline_run": "r", "created": datetime.now(UTC).isoformat()}  # fmt: skip
    return store.publish(work, **(about | more))


def fetched(store: SharedStore, key: str = KEY) -> str:
    """The rows of the result as a stage that reads it sees them."""
    found, wrong = store.find("collect", key)
    assert found, wrong
    store.fetch(found)
    return found.file("rows.jsonl").read_text()


def damage_there(store: SharedStore, content: bytes | None) -> None:
    """Change the rows in the object store, or remove them."""
    [name] = [n for n in store.objects.names() if n.endswith("rows.jsonl")]
    if content is None:
        store.objects.remove(name)
    else:
        store.objects.write(name, content, new=False)


def problems(store: SharedStore) -> list[str]:
    """What is wrong with the shared results, by every byte."""
    return [wrong for _, wrong in store.shared_damage() if wrong]
