"""A store on Google Cloud Storage: what S3 does for it, in the words of another service.

The emulator writes whatever the condition of a write says, so that of two machines that write in
the same moment both succeed here. What is tested is that the condition is sent, and that the
service's refusal (412) is understood.
"""

import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fsspec.config
import gcp_storage_emulator.server
import pytest

from tasks import object_store
from tasks.object_store import ObjectDamaged, ObjectStore
from tasks.shared_store import SharedStore
from tests.tasks.shared_by_hand import KEY, damage_there, fetched, gs_server, made

Router = gcp_storage_emulator.server.Router
PART = 1 << 20  # bytes of a file that is sent in parts; the library's own is 50 MB
ROWS = "0123456789abcde\n" * (6 * PART // 16)  # above 5 MB files are sent in parts


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with gs_server("klear") as address:
        yield address


@pytest.fixture
def url(server, monkeypatch, tmp_path) -> str:
    there = {"token": "anon", "endpoint_url": server}
    monkeypatch.setitem(fsspec.config.conf, "gs", there)
    monkeypatch.setattr(object_store, "FIRST_DELAY_S", 0.01)
    return f"gs://klear/{tmp_path.name}"


@pytest.fixture
def objects(url) -> ObjectStore:
    return ObjectStore(url)


def test_another_machine_finds_the_result_and_fetches_its_files(url, tmp_path):
    published = made(SharedStore(tmp_path / "a", url), empty="")
    other = SharedStore(tmp_path / "b", url)

    found, _ = other.find("collect", KEY, verify=True)

    assert found is not None
    assert found.digest == published.digest
    assert fetched(other) == "rows"
    assert (found.folder / "deep/more.txt").read_text() == "more"
    assert (found.folder / "empty").read_text() == ""
    assert [wrong for _, wrong in other.shared_damage()] == [""]
    assert other.unnamed_uploads() == []


def test_the_first_of_two_machines_wins_and_the_second_takes_its_result(url, tmp_path):
    first, second = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    for store in (first, second):
        assert store.find("collect", KEY) == (None, "")  # both are about to compute it
    made(first, rows="mine")
    assert made(second, rows="yours").file("rows.jsonl").read_text() == "mine"
    assert fetched(SharedStore(tmp_path / "c", url)) == "mine"


def test_a_forced_result_replaces_the_shared_one(url, tmp_path):
    store = SharedStore(tmp_path / "a", url)
    made(store, rows="old")
    assert store.find("collect", KEY)[0]
    made(store, rows="new")
    assert fetched(SharedStore(tmp_path / "b", url)) == "new"
    [old] = store.unnamed_uploads()
    store.objects.remove(old)
    assert store.unnamed_uploads() == []
    assert fetched(SharedStore(tmp_path / "c", url)) == "new"


@pytest.mark.parametrize("content", [b"sowr", b"row", None])
def test_a_damaged_object_is_noticed_and_sent_again(url, tmp_path, content):
    store = SharedStore(tmp_path / "a", url)
    made(store)
    damage_there(store, content)
    with pytest.raises((ObjectDamaged, AssertionError), match=r"rows.jsonl is "):
        fetched(SharedStore(tmp_path / "b", url))
    found, _ = store.find("collect", KEY, verify=True)
    assert found

    store.share(found)

    assert [wrong for _, wrong in store.shared_damage()] == [""]
    assert fetched(SharedStore(tmp_path / "b", url)) == "rows"


def test_a_large_file_arrives_whole(url, tmp_path, monkeypatch):
    store = SharedStore(tmp_path / "a", url)
    put, sent = store.objects._fs.put, []
    monkeypatch.setattr(store.objects._fs, "put", lambda a, b: put(a, b, chunksize=PART))
    handle = Router.handle
    monkeypatch.setattr(Router, "handle", lambda r, how: (sent.append(how), handle(r, how)))
    made(store, rows=ROWS)
    assert len(sent) > len(ROWS) // PART
    other = SharedStore(tmp_path / "b", url)
    assert [wrong for _, wrong in other.shared_damage()] == [""]
    assert fetched(other) == ROWS


def test_objects_are_listed_stamped_and_removed(objects):
    assert objects.names() == []
    assert objects.read("a/x") is None
    assert objects.digest("a/x") == ""
    for name in ("a/x", "a/deep/y", "ab"):
        objects.write(name, b"old", new=True)
    assert objects.names() == ["a/deep/y", "a/x", "ab"]
    assert objects.names("a") == ["deep/y", "x"]
    before = objects.stamps("a")
    objects.write("a/x", b"new", new=False)
    after = objects.stamps("a")
    assert [n for n in after if after[n] != before[n]] == ["x"]
    objects.remove("a")
    objects.remove_one("ab")
    objects.remove_one("ab")
    assert objects.names() == []


def conditions(monkeypatch: pytest.MonkeyPatch, *, refuse: bool = False) -> list[str]:
    """The generations that writes ask for, as they come; with `refuse`, the service says no."""
    asked: list[str] = []
    handle = Router.handle

    def watching(router: Router, method: str) -> None:
        request = router._request_handler
        wanted = parse_qs(urlsplit(request.path).query).get("ifGenerationMatch", [])
        asked.extend(wanted)
        if wanted and refuse:
            request.rfile.read(int(request.headers["Content-Length"]))
            request.send_response(HTTPStatus.PRECONDITION_FAILED)
            request.end_headers()
        else:
            handle(router, method)

    monkeypatch.setattr(Router, "handle", watching)
    return asked


def test_a_new_object_is_to_be_the_first_and_a_replaced_one_the_one_that_was_seen(
    objects, monkeypatch
):
    asked = conditions(monkeypatch)
    objects.write("x", b"old", new=True)
    seen = objects._fs.info(objects._at("x"))["generation"]
    objects.replace("x", b"new", over=b"old")
    assert objects.read("x") == b"new"
    assert asked == ["0", seen]
    for name in ("x", "y"):
        with pytest.raises(FileExistsError):
            objects.replace(name, b"newer", over=b"old")
    assert asked == ["0", seen]


def test_a_refusal_of_the_service_means_that_another_machine_was_faster(objects, monkeypatch):
    objects.write("x", b"old", new=True)
    asked = conditions(monkeypatch, refuse=True)
    with pytest.raises(FileExistsError):
        objects.write("x", b"mine", new=True)
    with pytest.raises(FileExistsError):
        objects.replace("x", b"mine", over=b"old")
    assert len(asked) == 2
    assert objects.read("x") == b"old"


def test_racing_machines_that_share_one_result_do_not_disturb_each_other(url, tmp_path):
    stores = [SharedStore(tmp_path / str(i), url) for i in range(4)]
    threads = [threading.Thread(target=made, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [wrong for _, wrong in stores[0].shared_damage()] == [""]
    assert {fetched(store) for store in stores} == {"rows"}


def test_a_bucket_that_is_not_there_is_said_to_be_missing(url, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"/nowhere/"):
        made(SharedStore(tmp_path, "gs://nowhere/results"))
