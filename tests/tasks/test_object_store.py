"""Moving files to and from an object store: what is tried again, and what shows that it moves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks import object_store
from tasks.object_store import ObjectStore, StoreUnreachable
from tasks.progress import listening
from tasks.store import FileEntry, scan


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    monkeypatch.setattr(object_store, "FIRST_DELAY_S", 0.0)
    return ObjectStore(f"file://{tmp_path}/objects")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files; the third has 30 bytes, the others one."""
    made = tmp_path / "made"
    made.mkdir()
    for number in range(5):
        (made / str(number)).write_text("x" * (30 if number == 2 else 1))
    return made


def failing(store: ObjectStore, error: Exception, monkeypatch) -> list[str]:
    """Every read of `store` raises `error`; the list tells how often."""
    calls: list[str] = []

    def cat(name: str) -> bytes:
        calls.append(name)
        raise error

    monkeypatch.setattr(store._fs, "cat_file", cat)
    return calls


@pytest.mark.parametrize(
    "error", [TypeError("no"), KeyError("ETag"), AttributeError("no"), PermissionError("no")]
)
def test_what_no_second_try_mends_is_raised_at_once_and_as_it_is(store, error, monkeypatch):
    calls = failing(store, error, monkeypatch)
    with pytest.raises(type(error)) as raised:
        store.read("manifest.json")
    assert raised.value is error
    assert len(calls) == 1


@pytest.mark.parametrize("error", [OSError("reset"), TimeoutError("slow"), RuntimeError("504")])
def test_what_a_server_does_wrong_is_tried_again(store, error, monkeypatch):
    calls = failing(store, error, monkeypatch)
    with pytest.raises(StoreUnreachable, match=f"failed {object_store.TRIES} times"):
        store.read("manifest.json")
    assert len(calls) == object_store.TRIES


def reported(action: Callable[[], None]) -> list[tuple[float, float, str]]:
    seen: list[tuple[float, float, str]] = []
    with listening(lambda *what: seen.append(what)):
        action()
    return seen


@pytest.mark.parametrize(
    ("together", "most_bytes", "ends"),
    [(16, 1 << 30, [5]), (2, 1 << 30, [2, 4, 5]), (16, 10, [2, 3, 5]), (1, 1, [1, 2, 3, 4, 5])],
)
def test_each_transfer_of_a_few_files_or_bytes_is_progress(
    store, folder, tmp_path, monkeypatch, together, most_bytes, ends
):
    monkeypatch.setattr(object_store, "TOGETHER", together)
    monkeypatch.setattr(object_store, "BYTES_TOGETHER", most_bytes)
    files: dict[str, FileEntry] = scan(folder)

    up = reported(lambda: store.upload(folder, files, "there"))
    down = reported(lambda: store.download(tmp_path / "back", files, "there"))

    assert up == [(end, 5, "files uploaded") for end in ends]
    assert down == [(end, 5, "files downloaded") for end in ends]
    assert scan(tmp_path / "back") == files


def test_what_is_there_already_is_not_sent_again(store, folder):
    files = scan(folder)
    store.upload(folder, files, "there")
    assert reported(lambda: store.upload(folder, files, "there")) == []
