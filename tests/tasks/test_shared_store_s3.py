"""A large file travels to an S3 server in parts: it is there whole, or not at all."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import moto.s3.models
import pytest
import s3fs.core

from tasks.store.shared import SharedStore
from tests.tasks.shared_by_hand import (
    KEY,
    fetched,
    new_bucket,
    problems,
    s3_server,
    signed_on,
)

ROOT = Path(__file__).parents[2]
PART = 1 << 16  # bytes; a server allows no less than 5 MB, and ours is told otherwise
PARTS = 12  # more than travel at once
ROWS = "0123456789abcde\n" * (PART * PARTS // 16)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as address:
        patch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 256)
        yield address


@pytest.fixture
def url(server, monkeypatch, tmp_path) -> str:
    signed_on(monkeypatch, server)
    return new_bucket(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
import s3fs.core
from tasks.store.shared import SharedStore
from tests.tasks.shared_by_hand import made
from tests.tasks.test_shared_store_s3 import PART, ROWS
s3fs.core.calculate_chunksize = lambda *_, **__: PART
call, arrived = s3fs.core.S3FileSystem._call_s3, []
async def dying(self, method, *args, **options):
    answer = await call(self, method, *args, **options)
    arrived.append(method)
    if arrived.count("upload_part") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
s3fs.core.S3FileSystem._call_s3 = dying
made(SharedStore(Path(sys.argv[1]), sys.argv[2]), rows=ROWS)
"""


def begun(store: SharedStore) -> list[str]:
    """The names of files whose parts the server keeps without having been told that it has all."""
    bucket = store.objects.url.split("/")[2]
    answer = store.objects._fs.fs.call_s3("list_multipart_uploads", Bucket=bucket)
    return [upload["Key"].rpartition("/")[2] for upload in answer.get("Uploads", [])]


def test_a_kill_between_the_parts_of_a_file_shares_nothing_and_the_file_is_sent_again(
    url, tmp_path, monkeypatch
):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a"), url],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    other = SharedStore(tmp_path / "b", url)
    assert other.find("collect", KEY) == (None, "")
    assert begun(other) == ["rows.jsonl"]
    assert not [n for n in other.objects.names() if n.endswith("rows.jsonl")]

    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: PART)
    again = SharedStore(tmp_path / "a", url)
    found, _ = again.find("collect", KEY)
    assert found is not None
    again.share(found)

    [name] = [n for n in again.objects.names() if n.endswith("rows.jsonl")]
    etag = again.objects._fs.info(name)["ETag"]
    assert etag.strip('"').endswith(f"-{PARTS}")  # how S3 names a file that came in parts
    assert problems(again) == []
    assert fetched(other) == ROWS
    assert other.find("collect", KEY, verify=True)[1] == ""
    assert begun(other) == ["rows.jsonl"]  # the bucket's lifecycle rule removes those parts
