"""A store on a server: what one machine publishes, the other finds, whole or not at all."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec.config
import moto.s3.models
import pytest
import s3fs.core
from gcp_storage_emulator.server import create_server

from klear.configs.settings.explain import ConfigError
from klear.flows.cli.main import main
from klear.tasks.engine.run import Run, active
from klear.tasks.store.gc import damaged
from klear.tasks.store.lineage import find_by_prefix, results
from klear.tasks.store.shared import ObjectDamaged, SharedStore, StoreUnreachable
from klear.tasks.store.store import MANIFEST, Artifact
from tests.s3_server import s3_server, signed_on
from tests.tasks.manifests_by_hand import Knobs, collect, report

ROOT = Path(__file__).parents[2]
KEY = "0123456789abcdef"
NAME = f"collect/{KEY}/{MANIFEST}"
PART = 1 << 16  # bytes; a server allows no less than 5 MB, and ours is told otherwise
PARTS = 12  # more than travel at once
ROWS = "0123456789abcde\n" * (PART * PARTS // 16)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """The addresses of an S3 server in this process, and of one that speaks as Google's does."""
    with (
        s3_server() as s3,
        pytest.MonkeyPatch.context() as patch,
        create_server("127.0.0.1", 0, in_memory=True, default_bucket="klear") as gs,
    ):
        patch.setattr(moto.s3.models, "S3_UPLOAD_PART_MIN_SIZE", 256)
        google = f"http://127.0.0.1:{gs._api._httpd.server_port}"
        yield {"s3": s3, "gs": google}


def address(kind: str, servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Of a folder in a new bucket, in Google's, or on a disk that all machines mount."""
    signed_on(monkeypatch, servers["s3"])
    options = {"token": "anon", "endpoint_url": servers["gs"]}
    monkeypatch.setitem(fsspec.config.conf, "gs", options)
    bucket = f"klear-{abs(hash(str(tmp_path)))}"
    if kind == "s3":
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir(bucket)
    places = {"s3": f"s3://{bucket}/results", "gs": f"gs://klear/{tmp_path.name}"}
    return places.get(kind, f"file://{tmp_path}/shared")


@pytest.fixture(params=["s3", "gs", "file"])
def url(request, servers, monkeypatch, tmp_path) -> str:
    return address(request.param, servers, monkeypatch, tmp_path)


@pytest.fixture
def s3(servers, monkeypatch, tmp_path) -> str:
    return address("s3", servers, monkeypatch, tmp_path)


@pytest.fixture
def disk(tmp_path: Path) -> str:
    return f"file://{tmp_path}/shared"


def made(store: SharedStore, rows: str = "rows", key: str = KEY, **more: Any) -> Artifact:
    """A result of two files, published; `more` goes into the manifest."""
    work = store.work("collect", key)
    (work / "deep").mkdir(parents=True)
    (work / "rows.jsonl").write_text(rows)
    (work / "deep/more.txt").write_text("more")
    facts = {"stage": "collect", "version": 1, "key": key, "settings": {}, "seconds": 1.0,
             "pipeline_run": "r", "created": datetime.now(UTC).isoformat()}  # fmt: skip
    return store.publish(work, **(facts | more))


def fetched(store: SharedStore) -> str:
    """The rows of the result as a stage that reads it sees them."""
    artifact, wrong = store.find("collect", KEY)
    assert artifact, wrong
    store.fetch(artifact)
    return artifact.file("rows.jsonl").read_text()


def reused(store: SharedStore, *, verify: bool = False) -> Artifact:
    artifact, wrong = store.find("collect", KEY, verify=verify)
    assert artifact, wrong
    return store.share(artifact)


def rows_there(store: SharedStore) -> list[str]:
    """The names under which the rows lie in the object store."""
    return [n for n in sorted(store.objects.sizes()) if n.endswith("rows.jsonl")]


def damage_there(store: SharedStore, content: bytes | None) -> None:
    """Change the rows in the object store, or remove them."""
    [name] = rows_there(store)
    if content is None:
        store.objects.remove(name)
    else:
        store.objects.write(name, content, new=False)


def problems(store: SharedStore) -> list[str]:
    """What is wrong with the shared results, by every byte."""
    return [wrong for _, wrong in store.shared_damage() if wrong]


def test_the_first_of_two_machines_wins_and_the_second_takes_its_result(url, tmp_path):
    """And a third one finds it, and fetches its files."""
    first, second = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    for store in (first, second):
        assert store.find("collect", KEY)[0] is None  # both are about to compute it
    winner = made(first, rows="mine")
    adopted = made(second, rows="yours")
    assert adopted.digest == winner.digest
    assert adopted.file("rows.jsonl").read_text() == "mine"
    other = SharedStore(tmp_path / "c", url)
    artifact, _ = other.find("collect", KEY, verify=True)
    assert artifact.digest == winner.digest
    assert not artifact.folder.exists()
    assert other.manifest(artifact).files.keys() == {"rows.jsonl", "deep/more.txt"}
    assert fetched(other) == "mine"
    assert (artifact.folder / "deep/more.txt").read_text() == "more"
    assert other.find("collect", KEY, verify=True)[0] == artifact
    assert problems(other) == []


def test_racing_writers_leave_one_whole_result(s3, tmp_path):
    stores = [SharedStore(tmp_path / str(i), s3) for i in range(6)]
    ready = threading.Barrier(len(stores))

    def race(store: SharedStore) -> Artifact:
        ready.wait()
        return made(store, rows=f"rows of {store.root}")

    with ThreadPoolExecutor(len(stores)) as pool:
        artifacts = list(pool.map(race, stores))
    assert len({r.digest for r in artifacts}) == 1
    assert len({r.file("rows.jsonl").read_text() for r in artifacts}) == 1
    assert problems(stores[0]) == []


def test_a_forced_result_replaces_the_shared_one_that_was_seen_and_no_other(url, tmp_path):
    here, second, third = (SharedStore(tmp_path / name, url) for name in "abc")
    made(here, rows="old")
    assert fetched(second) == fetched(third) == "old"
    made(here, rows="new here")
    assert fetched(SharedStore(tmp_path / "d", url)) == "new here"
    uploads = {name.split("/")[2] for name in here.objects.sizes()}
    assert len(uploads) == 2  # the manifest and one folder: the old files are gone
    assert made(second, rows="new there").file("rows.jsonl").read_text() == "new here"
    assert problems(here) == []
    at_the_next_hit = reused(SharedStore(tmp_path / "c", url))
    assert at_the_next_hit.file("rows.jsonl").read_text() == "new here"


def test_an_address_that_nothing_here_can_read_is_refused(tmp_path):
    for wrong in ("nonsense://x/y", "abfs://bucket/x"):
        with pytest.raises(ConfigError, match=r"KLEAR_STORE="):
            SharedStore(tmp_path, wrong)


def test_what_others_published_is_listed_and_may_be_an_input(disk, tmp_path, monkeypatch, capsys):
    one, two = SharedStore(tmp_path / "a", disk), SharedStore(tmp_path / "b", disk)
    made(two, key="b" * 16, created="2026-01-01T00:00:00+00:00")
    newest = made(one, key="a" * 16, created="2026-01-02T00:00:00+00:00")
    assert [m.key[0] for m in results(two, "collect")] == ["b", "a"]
    assert results(two, "dedup") == []
    assert find_by_prefix(two, "collect", "aaaaaa").digest == newest.digest
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KLEAR_STORE", disk)
    assert main(["store", "ls"]) == 0
    assert f"collect/{newest.key}" in capsys.readouterr().out
    assert main(["lineage", f"collect/{newest.key}"]) == 0
    two.objects.remove("collect")
    assert [m.key[0] for m in results(two)] == ["b"]


def test_a_cached_result_is_published_at_a_new_address_or_where_another_machine_removed_it(
    disk, tmp_path
):
    made(SharedStore(tmp_path / "a", disk))
    for place in (f"{disk}_new", disk):
        other = SharedStore(tmp_path / "b", place)
        other.objects.remove(f"collect/{KEY}")
        reused(SharedStore(tmp_path / "a", place))
        assert fetched(other) == "rows"


def test_a_forced_result_that_could_not_be_sent_is_sent_later_and_kept(disk, tmp_path, monkeypatch):
    store = SharedStore(tmp_path / "a", disk)
    made(store, rows="old")
    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "upload", Mock(side_effect=StoreUnreachable("cut")))
        with pytest.raises(StoreUnreachable):
            made(store, rows="new")
    assert reused(SharedStore(tmp_path / "a", disk)).file("rows.jsonl").read_text() == "new"
    assert fetched(SharedStore(tmp_path / "b", disk)) == "new"


KILLED = """
import os, signal, sys
from pathlib import Path
import s3fs.core
from klear.tasks.store.shared import SharedStore
from tests.tasks.test_shared_store import PART, ROWS, made
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
    s3, tmp_path, monkeypatch
):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a"), s3],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/.package{os.pathsep}{ROOT}"}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    other = SharedStore(tmp_path / "b", s3)
    assert other.find("collect", KEY) == (None, "")
    assert begun(other) == ["rows.jsonl"]
    assert not rows_there(other)
    monkeypatch.setattr(s3fs.core, "calculate_chunksize", lambda *_, **__: PART)
    again = SharedStore(tmp_path / "a", s3)
    reused(again)
    [name] = rows_there(again)
    etag = again.objects._fs.info(name)["ETag"]
    assert etag.strip('"').endswith(f"-{PARTS}")  # how S3 names a file that came in parts
    assert problems(again) == []
    assert fetched(other) == ROWS
    assert other.find("collect", KEY, verify=True)[1] == ""
    assert begun(other) == ["rows.jsonl"]  # the bucket's lifecycle rule removes those parts


def test_a_changed_or_missing_object_is_found_never_handed_out_and_sent_again(url, tmp_path):
    store = SharedStore(tmp_path / "a", url)
    made(store)
    for content in (b"sowr", b"row", None):
        damage_there(store, content)
        assert problems(store) == [f"collect/{KEY}: rows.jsonl is missing or was changed"]
        with pytest.raises((ObjectDamaged, AssertionError), match=r"rows.jsonl is "):
            fetched(SharedStore(tmp_path / "b", url))
        assert not (tmp_path / "b" / "collect" / KEY).exists()
        reused(store, verify=True)
        assert problems(store) == []


def test_a_result_without_its_files_is_not_found_and_is_replaced(disk, tmp_path):
    made(SharedStore(tmp_path / "a", disk))
    for content in (None, b"", b"row"):
        other = SharedStore(tmp_path / f"other {content}", disk)
        damage_there(other, content)
        artifact, wrong = other.find("collect", KEY)
        assert artifact is None
        assert wrong.endswith(f"collect/{KEY}: rows.jsonl is missing or was changed")
        made(other, rows=f"in place of {content}")
        assert problems(other) == []
        assert fetched(SharedStore(tmp_path / f"c {content}", disk)) == f"in place of {content}"


def test_an_unreadable_manifest_is_named_and_replaced(disk, tmp_path):
    """Not that of a result, or one that reaches beyond its folder."""
    store = SharedStore(tmp_path / "a", disk)
    good = (made(store).folder / MANIFEST).read_text()
    for number, wrong in enumerate(("{", good.replace("rows.jsonl", "../outside"))):
        store.discard("collect", KEY)
        store.objects.write(NAME, wrong.encode(), new=False)
        artifact, reason = store.find("collect", KEY)
        assert artifact is None
        assert "unreadable manifest" in reason
        made(store, rows=f"made again, {number}")
        assert fetched(SharedStore(tmp_path / f"b{number}", disk)) == f"made again, {number}"


def test_a_copy_that_was_changed_here_is_named_and_brought_again(disk, tmp_path):
    """One of the same size under `verify`."""
    store = SharedStore(tmp_path / "a", disk)
    path = made(store).file("rows.jsonl")
    for rows, verify in (("other rows", False), ("sowr", True)):
        path.write_text(rows)
        [(_, wrong)] = damaged(store)
        assert wrong.endswith("rows.jsonl was changed since it was published")
        assert path.read_text() == rows
        again = SharedStore(tmp_path / "a", disk)
        again.fetch(reused(again, verify=verify))
        assert path.read_text() == "rows"


@pytest.mark.usefixtures("in_this_process")
def test_the_same_command_goes_on_after_it_met_a_damaged_input(disk, tmp_path):
    with active(Run(store=SharedStore(tmp_path / "a", disk))):
        collect(settings=Knobs())
    damage_there(SharedStore(tmp_path / "a", disk), b"sowr")

    def run() -> str:
        with active(Run(store=SharedStore(tmp_path / "b", disk))):
            made_of_it = report(collect(settings=Knobs()), settings=Knobs())
        return made_of_it.file("rows.jsonl").read_text()

    with pytest.raises(ObjectDamaged, match=r"the next run that makes it computes it again$"):
        run()
    assert run() == "rows"
    assert problems(SharedStore(tmp_path / "c", disk)) == []
