"""A store on a server: what one machine publishes, the other finds, whole or not at all."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec.config
import pytest

from configs.settings.explain import ConfigError
from tasks.store.shared import ObjectDamaged, SharedStore, StoreUnreachable
from tasks.store.store import MANIFEST, Artifact
from tests.tasks.shared_by_hand import (
    KEY,
    damage_there,
    fetched,
    gs_server,
    made,
    new_bucket,
    problems,
    s3_server,
    signed_on,
)

ROOT = Path(__file__).parents[2]
NAME = f"collect/{KEY}/{MANIFEST}"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with s3_server() as s3, gs_server("klear") as gs:
        yield {"s3": s3, "gs": gs}


def address(kind: str, servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    if kind == "s3":
        signed_on(monkeypatch, servers["s3"])
        return new_bucket(tmp_path)
    there = {"token": "anon", "endpoint_url": servers["gs"]}
    monkeypatch.setitem(fsspec.config.conf, "gs", there)
    return {"gs": f"gs://klear/{tmp_path.name}", "file": f"file://{tmp_path}/shared"}[kind]


@pytest.fixture(params=["s3", "gs", "file"])
def url(request, servers, monkeypatch, tmp_path) -> str:
    """An address of every kind: S3, Google Cloud Storage, a folder that all machines mount."""
    return address(request.param, servers, monkeypatch, tmp_path)


@pytest.fixture
def s3(servers, monkeypatch, tmp_path) -> str:
    return address("s3", servers, monkeypatch, tmp_path)


def test_another_machine_finds_the_result_and_fetches_its_files(url, tmp_path):
    published = made(SharedStore(tmp_path / "a", url))
    other = SharedStore(tmp_path / "b", url)

    found, _ = other.find("collect", KEY, verify=True)

    assert found is not None
    assert found.digest == published.digest
    assert not found.folder.exists()
    assert other.manifest(found).files.keys() == {"rows.jsonl", "deep/more.txt"}
    assert fetched(other) == "rows"
    assert (found.folder / "deep/more.txt").read_text() == "more"
    assert other.find("collect", KEY, verify=True)[0] == found
    assert problems(other) == []


def test_the_first_of_two_machines_wins_and_the_second_takes_its_result(url, tmp_path):
    first, second = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    for store in (first, second):
        assert store.find("collect", KEY)[0] is None  # both are about to compute it
    mine = made(first, rows="mine")

    adopted = made(second, rows="yours")

    assert adopted.digest == mine.digest
    assert adopted.file("rows.jsonl").read_text() == "mine"
    assert fetched(SharedStore(tmp_path / "c", url)) == "mine"


def test_a_forced_result_replaces_the_shared_one_that_was_seen_and_no_other(url, tmp_path):
    here, there = SharedStore(tmp_path / "a", url), SharedStore(tmp_path / "b", url)
    made(here, rows="old")
    assert fetched(there) == "old"
    made(here, rows="new here")
    assert fetched(SharedStore(tmp_path / "c", url)) == "new here"
    uploads = {name.split("/")[2] for name in here.objects.names()}
    assert len(uploads) == 2  # the manifest and one folder: the old files are gone
    assert made(there, rows="new there").file("rows.jsonl").read_text() == "new here"
    assert problems(here) == []


@pytest.mark.parametrize("content", [b"sowr", b"row", None])
def test_a_changed_or_missing_object_is_found_never_handed_out_and_sent_again(
    url, tmp_path, content
):
    store = SharedStore(tmp_path / "a", url)
    made(store)
    damage_there(store, content)
    assert problems(store) == [f"collect/{KEY}: rows.jsonl is missing or was changed"]
    with pytest.raises((ObjectDamaged, AssertionError), match=r"rows.jsonl is "):
        fetched(SharedStore(tmp_path / "b", url))
    assert not (tmp_path / "b" / "collect" / KEY).exists()
    found, _ = store.find("collect", KEY, verify=True)
    assert found
    store.share(found)
    assert problems(store) == []


def test_racing_writers_leave_one_whole_result(s3, tmp_path):
    stores = [SharedStore(tmp_path / str(i), s3) for i in range(6)]
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
    assert problems(stores[0]) == []


@pytest.mark.parametrize("text", ["{", "../outside"])
def test_an_unreadable_manifest_is_named_and_replaced(s3, tmp_path, text):
    """Not that of a result, or one that reaches beyond its folder."""
    store = SharedStore(tmp_path / "a", s3)
    good = (made(store).folder / MANIFEST).read_text()
    store.discard("collect", KEY)
    wrong = text if text == "{" else good.replace("rows.jsonl", text)
    store.objects.write(NAME, wrong.encode(), new=False)
    found, said = store.find("collect", KEY)
    assert found is None
    assert "unreadable manifest" in said
    made(store, rows="made again")
    assert fetched(SharedStore(tmp_path / "b", s3)) == "made again"


def test_a_server_that_is_away_ends_the_stage_with_what_to_do(tmp_path, monkeypatch):
    signed_on(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreUnreachable, match=r"the same command continues"):
        SharedStore(tmp_path, "s3://away/results").find("collect", KEY)


@pytest.mark.parametrize("wrong", ["nonsense://x/y", "abfs://bucket/x"])
def test_an_address_that_nothing_here_can_read_is_refused(wrong, tmp_path):
    with pytest.raises(ConfigError, match=r"KLEAR_STORE="):
        SharedStore(tmp_path, wrong)
