import os
from functools import partial
from pathlib import Path

import pytest

from tasks import ray_files
from tasks.ray_files import Inputs, NotHere, Received, pack, read_chunk, sent, trim


@pytest.fixture
def node(tmp_path, monkeypatch) -> Path:
    """Where this process, as a node, keeps copies; chunks have four bytes."""
    folder = tmp_path / "node"
    folder.mkdir()
    monkeypatch.setattr(ray_files.tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(ray_files, "CHUNK", 4)
    return folder


@pytest.fixture
def away(tmp_path):
    """A packed file that its node does not see, and the reader on the machine that has it."""
    there, hidden = tmp_path / "there" / "rows.txt", tmp_path / "hidden.txt"
    there.parent.mkdir()
    there.write_text("ten bytes!")
    packed = pack({"file": there, "root": there.parent})
    there.rename(hidden)
    read: list[int] = []

    def fetch(path: str, offset: int) -> bytes:
        assert path == str(there)
        read.append(offset)
        return read_chunk(str(hidden), offset)

    return packed, fetch, read


def test_a_file_that_the_node_sees_is_read_where_it_is(tmp_path, node, monkeypatch):
    (tmp_path / "rows.txt").write_text("rows")
    monkeypatch.chdir(tmp_path)
    found = Inputs("call", None).unpack(pack([Path("rows.txt"), Path("none"), 3]))
    assert found == [tmp_path / "rows.txt", tmp_path / "none", 3]
    assert not list(node.iterdir())


def test_a_file_of_the_same_name_and_size_that_is_another_is_not_read(tmp_path, node):
    file = tmp_path / "rows.txt"
    file.write_text("rows")
    packed = pack(file)
    os.utime(file, ns=(1, 1))
    with pytest.raises(NotHere, match=r"rows\.txt"):
        Inputs("call", None).unpack(packed)


def test_a_file_is_fetched_in_chunks_and_once_a_node(node, away):
    packed, fetch, read = away
    with pytest.raises(NotHere):
        Inputs("call", None).unpack(packed)

    first = Inputs("call", fetch).unpack(packed)
    second = Inputs("call", fetch).unpack(packed)

    assert first == second
    assert first["file"].read_text() == "ten bytes!"
    assert first["file"].is_relative_to(node / f"{ray_files.PREFIX}call")
    assert not first["root"].is_relative_to(node)  # a folder is only a name
    assert read == [0, 4, 8]


def test_a_file_that_changed_is_fetched_again_beside_its_older_copy(tmp_path, node):
    """A part that began with the older one goes on reading it."""
    there, hidden = tmp_path / "rows.txt", tmp_path / "hidden.txt"

    def unpacked(text: str, time_ns: int) -> Path:
        there.write_text(text)
        os.utime(there, ns=(time_ns, time_ns))
        packed = pack(there)
        there.rename(hidden)
        return Inputs("run", lambda _, at: read_chunk(str(hidden), at)).unpack(packed)

    older, newer = unpacked("old!", 1), unpacked("new!", 2)
    assert (older.read_text(), newer.read_text()) == ("old!", "new!")
    assert older.name == newer.name == "rows.txt"


def test_a_copy_needs_no_one_who_fetches(node, away):
    packed, fetch, read = away
    first = Inputs("run", fetch).unpack(packed)
    assert Inputs("run", None).unpack(packed) == first
    assert read == [0, 4, 8]


def test_the_copies_that_were_not_used_for_longest_go_first(tmp_path, node):
    copies = {}
    for name in ("a", "b", "c"):
        file = tmp_path / name
        file.write_text("four")
        packed = pack(file)
        file.rename(tmp_path / f"hidden-{name}")
        at_home = str(tmp_path / f"hidden-{name}")
        fetch = partial(lambda at_home, _, at: read_chunk(at_home, at), at_home)
        copies[name] = packed, Inputs("run", fetch).unpack(packed)
    again, path = copies["a"]
    assert Inputs("run", None).unpack(again) == path

    trim("run", most=11)

    assert {name for name, (_, path) in copies.items() if path.exists()} == {"a", "c"}
    trim("run")  # a quarter of the disk is more than eight bytes
    assert path.exists()
    with pytest.raises(NotHere):
        Inputs("run", None).unpack(copies["b"][0])


def test_a_folder_that_somebody_swept_is_made_again(node):
    folder = Inputs("swept", None).folder()
    folder.rmdir()
    assert Inputs("swept", None).folder().is_dir()
    assert os.path.samestat(os.fstat(ray_files._held[str(folder)]), folder.stat())


def test_a_file_that_shrinks_on_its_way_is_an_error_and_no_copy(node, away):
    packed, fetch, _ = away

    def shrinks(path: str, offset: int) -> bytes:
        return fetch(path, offset if offset < 8 else 10)

    with pytest.raises(EOFError, match="became shorter than 11 bytes"):
        Inputs("call", shrinks).unpack(packed)
    assert Inputs("call", fetch).unpack(packed)["file"].read_text() == "ten bytes!"


def test_a_folder_arrives_as_it_was_sent(tmp_path, node):
    (tmp_path / "from" / "deep").mkdir(parents=True)
    for name, text in (("a", "some bytes"), ("empty", ""), ("deep/b", "more")):
        (tmp_path / "from" / name).write_text(text)
    received = Received(tmp_path / "to")

    ends = [received.take(name, chunk) for name, chunk in sent(tmp_path / "from")]

    assert ends == [False] * (len(ends) - 1) + [True]
    for name in ("a", "empty", "deep/b"):
        assert (tmp_path / "to" / name).read_text() == (tmp_path / "from" / name).read_text()


@pytest.mark.parametrize("damage", [lambda c: c[:1] + c[2:], lambda c: [c[1], c[0], *c[2:]]])
def test_a_folder_with_a_lost_or_exchanged_chunk_does_not_arrive(tmp_path, node, damage):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_text("some bytes of a file")
    (tmp_path / "to").mkdir()
    received = Received(tmp_path / "to")
    *chunks, end = damage(list(sent(tmp_path / "from")))
    assert not any(received.take(*chunk) for chunk in chunks)
    with pytest.raises(OSError, match="did not arrive as it was sent"):
        received.take(*end)
