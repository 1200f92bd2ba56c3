"""What a shared store asks of an S3 server beyond single objects: parts, and conditions."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moto.s3.models
import pytest
import s3fs.core

from tasks.object_store import ObjectStore
from tasks.shared_store import SharedStore
from tests.tasks.shared_by_hand import KEY, fetched, made, new_bucket, s3_server, signed_on

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
from tasks.shared_store import SharedStore
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
    answer = store.objects._fs.call_s3("list_multipart_uploads", Bucket=bucket)
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
    etag = again.objects._fs.info(again.objects._at(name))["ETag"]
    assert etag.strip('"').endswith(f"-{PARTS}")  # how S3 names a file that came in parts
    assert [wrong for _, wrong in again.shared_damage()] == [""]
    assert fetched(other) == ROWS
    assert other.find("collect", KEY, verify=True)[1] == ""
    assert begun(other) == ["rows.jsonl"]  # the bucket's lifecycle rule removes those parts
    assert other.unnamed_uploads() == []


def test_of_two_that_force_at_once_the_first_wins_and_the_other_takes_its_result(
    url, tmp_path, monkeypatch
):
    here, there = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    made(here, rows="old")
    assert fetched(there) == "old"
    put = here.objects._put_at_once

    def overtaken(path: str, content: bytes, **condition: Any) -> None:
        """Between the last look of this machine and its write the other one writes."""
        monkeypatch.setattr(here.objects, "_put_at_once", put)
        made(there, rows="new there")
        put(path, content, **condition)

    monkeypatch.setattr(here.objects, "_put_at_once", overtaken)

    assert made(here, rows="new here").file("rows.jsonl").read_text() == "new there"
    assert fetched(here) == fetched(there) == "new there"
    assert fetched(SharedStore(tmp_path / "c", url)) == "new there"


@pytest.fixture
def objects(url) -> ObjectStore:
    return ObjectStore(url)


def test_an_object_is_replaced_only_in_the_place_of_the_one_that_was_seen(objects):
    objects.write("x", b"old", new=True)
    objects.replace("x", b"new", over=b"old")
    assert objects.read("x") == b"new"
    with pytest.raises(FileExistsError):
        objects.replace("x", b"newer", over=b"old")
    with pytest.raises(FileExistsError):
        objects.replace("y", b"new", over=b"old")
    assert objects.names() == ["x"]


def refusing(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The server answers conditional writes with `code`, in words that the library passes on."""
    pipe = objects._fs.pipe_file

    def answer(path: str, content: bytes, **condition: str) -> None:
        if not condition:
            pipe(path, content)
            return
        response = {"Error": {"Code": code, "Message": "no"}}
        raise s3fs.core.translate_boto_error(s3fs.core.ClientError(response, "PutObject"))

    monkeypatch.setattr(objects._fs, "pipe_file", answer)


def test_a_refusal_in_the_words_of_another_server_is_a_refusal(objects, monkeypatch):
    objects.write("x", b"old", new=True)
    refusing(objects, monkeypatch, "PreconditionFailed")
    with pytest.raises(FileExistsError):
        objects.write("x", b"mine", new=True)
    assert objects.read("x") == b"old"


def test_a_server_without_conditions_is_written_to_without(objects, monkeypatch):
    refusing(objects, monkeypatch, "NotImplemented")
    objects.write("x", b"old", new=True)
    objects.replace("x", b"new", over=b"old")
    assert objects.read("x") == b"new"


def test_of_two_writes_without_conditions_the_one_that_stays_counts(objects, monkeypatch):
    refusing(objects, monkeypatch, "NotImplemented")
    put = objects._put_at_once

    def overtaken(path: str, content: bytes, *, new: bool) -> None:
        put(path, content, new=new)
        put(path, b"theirs", new=False)

    monkeypatch.setattr(objects, "_put_at_once", overtaken)
    with pytest.raises(FileExistsError):
        objects.write("x", b"mine", new=True)
    assert objects.read("x") == b"theirs"
