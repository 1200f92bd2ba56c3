"""A store on an S3 server: what one machine publishes, the other finds, whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tasks import object_store
from tasks.object_store import ObjectDamaged, StoreUnreachable
from tasks.shared_store import SharedStore
from tasks.store import MANIFEST, Artifact
from tests.tasks.shared_by_hand import (
    KEY,
    damage_there,
    fetched,
    made,
    new_bucket,
    s3_server,
    signed_on,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def url(server, monkeypatch, tmp_path) -> str:
    signed_on(monkeypatch, server)
    return new_bucket(tmp_path)


def test_another_machine_finds_the_result_and_fetches_its_files(url, tmp_path):
    published = made(SharedStore(tmp_path / "a", url))
    other = SharedStore(tmp_path / "b", url)

    found, _ = other.find("collect", KEY)

    assert found is not None
    assert found.digest == published.digest
    assert not found.folder.exists()
    assert other.manifest(found).files.keys() == {"rows.jsonl", "deep/more.txt"}
    assert fetched(other) == "rows"
    assert (found.folder / "deep/more.txt").read_text() == "more"
    assert other.find("collect", KEY, verify=True)[0] == found


def test_what_nobody_published_is_nowhere(url, tmp_path):
    store = SharedStore(tmp_path, url)
    assert store.find("collect", KEY) == (None, "")
    gone = Artifact(stage="collect", key=KEY, digest="d", folder=tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"collect/0123456789abcdef is not in s3://"):
        store.fetch(gone)
    with pytest.raises(FileNotFoundError):
        store.manifest(gone)


def test_a_damaged_copy_is_fetched_again(url, tmp_path):
    store = SharedStore(tmp_path, url)
    made(store).file("rows.jsonl").write_text("other rows")
    assert fetched(store) == "rows"


def test_the_first_of_two_machines_wins_and_the_second_takes_its_result(url, tmp_path):
    first, second = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    for store in (first, second):
        assert store.find("collect", KEY)[0] is None  # both are about to compute it
    mine = made(first, rows="mine")

    adopted = made(second, rows="yours")

    assert adopted.digest == mine.digest
    assert adopted.file("rows.jsonl").read_text() == "mine"
    assert fetched(SharedStore(tmp_path / "c", url)) == "mine"


def test_racing_writers_leave_one_whole_result(url, tmp_path):
    stores = [SharedStore(tmp_path / str(i), url) for i in range(6)]
    results: list[Artifact] = []
    ready = threading.Barrier(len(stores))

    def race(number: int) -> None:
        ready.wait()
        results.append(made(stores[number], rows=f"rows of {number}"))

    threads = [threading.Thread(target=race, args=(i,)) for i in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({r.digest for r in results}) == 1
    assert len({r.file("rows.jsonl").read_text() for r in results}) == 1
    assert [wrong for _, wrong in stores[0].shared_damage()] == [""]


def test_a_forced_result_replaces_the_shared_one(url, tmp_path):
    store = SharedStore(tmp_path / "a", url)
    made(store, rows="old")
    assert store.find("collect", KEY)[0]
    made(store, rows="new")
    assert fetched(SharedStore(tmp_path / "b", url)) == "new"
    assert len(store.unnamed_uploads()) == 1  # the old one, for whoever still reads it


def test_a_forced_result_yields_to_one_that_was_replaced_elsewhere_in_the_meantime(url, tmp_path):
    here, there = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    made(here, rows="old")
    assert fetched(there) == "old"
    made(here, rows="new here")
    assert made(there, rows="new there").file("rows.jsonl").read_text() == "new here"


def test_an_unreadable_manifest_is_named_and_replaced(url, tmp_path):
    store = SharedStore(tmp_path, url)
    store.objects.write(f"collect/{KEY}/{MANIFEST}", b"{", new=True)
    found, wrong = store.find("collect", KEY)
    assert found is None
    assert "unreadable manifest" in wrong
    assert made(store).file("rows.jsonl").read_text() == "rows"
    assert fetched(SharedStore(tmp_path / "b", url)) == "rows"


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks import object_store
from tasks.shared_store import SharedStore
from tests.tasks.shared_by_hand import made
object_store.TOGETHER = 1
store = SharedStore(Path(sys.argv[1]), sys.argv[2])
put, calls = store.objects._fs.put, []
def dying(*paths, **options):
    if calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(put(*paths, **options))
store.objects._fs.put = dying
made(store)
"""


def test_a_kill_in_the_middle_of_an_upload_shares_nothing_and_the_rest_is_sent_later(
    url, tmp_path, monkeypatch
):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a"), url],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    other = SharedStore(tmp_path / "b", url)
    assert other.find("collect", KEY) == (None, "")
    assert len(other.unnamed_uploads()) == 1

    again = SharedStore(tmp_path / "a", url)
    sent: list[str] = []
    put = again.objects._fs.put
    monkeypatch.setattr(again.objects._fs, "put", lambda a, b: (sent.extend(a), put(a, b)))
    found, _ = again.find("collect", KEY)
    assert found is not None
    again.share(found)

    assert len(sent) == 1  # of two files; one was there
    assert fetched(other) == "rows"
    assert other.unnamed_uploads() == []
    sent.clear()
    again.share(found)
    assert sent == []


def test_a_changed_or_missing_object_is_found_and_never_handed_out(url, tmp_path):
    store = SharedStore(tmp_path / "a", url)
    made(store)
    damage_there(store, b"sowr")

    assert [wrong for _, wrong in store.shared_damage()] == [
        f"collect/{KEY}: rows.jsonl is missing or was changed"
    ]
    with pytest.raises(ObjectDamaged, match=r"rows.jsonl is not what was published; the next run"):
        fetched(SharedStore(tmp_path / "b", url))
    assert not (tmp_path / "b" / "collect" / KEY).exists()


def test_a_server_that_stumbles_is_asked_again(url, tmp_path, monkeypatch):
    store = SharedStore(tmp_path / "a", url)
    put, failures = store.objects._fs.put, iter([OSError("reset"), TimeoutError("slow")])

    def stumbling(*paths: object) -> None:
        for error in failures:
            raise error
        put(*paths)

    monkeypatch.setattr(store.objects._fs, "put", stumbling)
    made(store)
    assert fetched(SharedStore(tmp_path / "b", url)) == "rows"


def test_a_server_that_is_away_ends_the_stage_with_what_to_do(tmp_path, monkeypatch):
    signed_on(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreUnreachable, match=r"the same command continues"):
        SharedStore(tmp_path, "s3://away/results").find("collect", KEY)


@pytest.mark.parametrize("url", ["nonsense://x/y", "abfs://bucket/x"])
def test_an_address_that_nothing_here_can_read_is_refused(url, tmp_path):
    with pytest.raises(object_store.ConfigError, match=r"KLEAR_STORE="):
        SharedStore(tmp_path, url)


def test_a_folder_that_machines_mount_needs_no_server(tmp_path):
    url = f"file://{tmp_path}/shared"
    made(SharedStore(tmp_path / "a", url))
    other = SharedStore(tmp_path / "b", url)
    assert fetched(other) == "rows"
    with pytest.raises(FileExistsError):
        other.objects.write(f"collect/{KEY}/{MANIFEST}", b"{}", new=True)
    assert [wrong for _, wrong in other.shared_damage()] == [""]


def test_a_forced_result_that_could_not_be_sent_is_sent_later_and_kept(url, tmp_path, monkeypatch):
    store = SharedStore(tmp_path / "a", url)
    made(store, rows="old")
    assert store.find("collect", KEY)[0]
    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "upload", Mock(side_effect=StoreUnreachable("cut")))
        with pytest.raises(StoreUnreachable):
            made(store, rows="new")

    again = SharedStore(tmp_path / "a", url)
    found, _ = again.find("collect", KEY)
    assert found is not None
    assert again.share(found).file("rows.jsonl").read_text() == "new"
    assert fetched(SharedStore(tmp_path / "b", url)) == "new"


def test_a_manifest_that_is_signed_later_is_shared_without_its_files_again(
    url, tmp_path, monkeypatch
):
    store = SharedStore(tmp_path / "a", url)
    found = made(store)
    path = found.folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mlflow_run": "later"}))
    sent: list[str] = []
    put = store.objects._fs.put
    monkeypatch.setattr(store.objects._fs, "put", lambda a, b: (sent.extend(a), put(a, b)))

    store.share(found)

    assert sent == []
    assert SharedStore(tmp_path / "b", url).manifest(found).mlflow_run == "later"
    assert fetched(SharedStore(tmp_path / "c", url)) == "rows"


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "deep/../../outside"])
def test_a_manifest_that_names_a_file_outside_of_its_folder_is_unreadable(url, tmp_path, name):
    store = SharedStore(tmp_path, url)
    text = made(store).folder.joinpath(MANIFEST).read_text().replace("rows.jsonl", name)
    store.discard("collect", KEY)
    store.objects.write(f"collect/{KEY}/{MANIFEST}", text.encode(), new=False)
    found, wrong = store.find("collect", KEY)
    assert found is None
    assert "unreadable manifest" in wrong
