"""Parts on a cluster whose second node sees no file of ours."""

import hashlib
import importlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from eval.ray_cluster import OtherCode
from tasks import ray_parts
from tasks.parts import computed_parts
from tasks.progress import listening
from tasks.ray_files import COPIES, PREFIX
from tasks.watchdog import Stalled, watched

HERE = Path(__file__).parent


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that nodes import by this name."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("parts_of_tests")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_parts_larger_than_the_object_store_travel_both_ways_in_pieces(
    cluster, place, work, tmp_path
):
    pieces = cluster.store_bytes // len(work.MEGABYTE) + 20
    inputs = []
    for name in ("one", "two"):
        inputs.append(place / name)
        with inputs[-1].open("wb") as file:
            for _ in range(pieces):
                file.write(name.encode() + work.MEGABYTE)

    parts = [(path, str(tmp_path)) for path in inputs]
    folders = list(computed_parts(place / "parts", parts, work.copy_twice))

    for folder, read in zip(folders, inputs, strict=True):
        assert {p.name for p in folder.iterdir()} == {"first", "deep", "found"}
        assert digest(folder / "first") == digest(folder / "deep" / "second") == digest(read)
    found = [(folder / "found").read_text() for folder in folders]
    away = [path for path in found if f"/{PREFIX}" in path]
    assert len(away) == 1  # one on each node, and one of them had to be sent its input
    assert sorted(p.name for p in (place / "parts").iterdir()) == ["00000", "00001"]
    assert not list(cluster.spilled.rglob("*"))


def test_a_table_travels_to_a_node_once_however_many_calls_read_it(
    cluster, place, work, tmp_path, monkeypatch
):
    """The second call sends nothing: it has nobody who would. The copy ends with this process."""
    table = place / "table"
    table.write_bytes(work.MEGABYTE)

    def read_by_both(call: str) -> list[str]:
        meeting = tmp_path / call
        meeting.mkdir()
        parts = [(table, name, str(meeting)) for name in ("one", "two")]
        folders = list(computed_parts(place / call, parts, work.read_one_table))
        assert [digest(f / "read") for f in folders] == [digest(table)] * 2
        return sorted((f / "found").read_text() for f in folders)

    first = read_by_both("first")
    monkeypatch.delattr(ray_parts.RayParts, "_serve_files")
    assert read_by_both("second") == first

    (copy,) = (Path(path) for path in first if f"/{PREFIX}" in path)
    of_run = copy.parents[2]
    assert {p.name for p in of_run.iterdir()} == {COPIES}  # nothing else of a call that has ended
    ray_parts._RUN.leave()
    assert not of_run.exists()


def test_what_a_part_raises_is_raised_here_and_finished_parts_stay(cluster, place, work):
    with pytest.raises(ValueError, match=r"^three is not to be squared$"):
        list(computed_parts(place / "parts", [1, 2, 3, 4], work.refuse_three, workers=2))
    left = {p.name for p in (place / "parts").iterdir()}
    assert left <= {"00000", "00001", "00003"}

    folders = computed_parts(place / "parts", [1, 2, 3, 4], work.write_square, workers=2)

    assert [int((f / "square").read_text()) for f in folders] == [1, 4, 9, 16]


def test_a_part_that_is_lost_every_time_is_an_error_with_advice(cluster, place, work, caplog):
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RuntimeError, match=r"part 0 was lost 4 times .* smaller parts need less"),
    ):
        list(computed_parts(place / "parts", [0, 1], work.die_at_zero, workers=2))
    assert caplog.text.count("part 0 was lost (") == 3


def test_a_node_with_other_code_computes_nothing(cluster, place, work, monkeypatch):
    monkeypatch.setattr(ray_parts, "code_digest", lambda: "another commit")
    with pytest.raises(OtherCode, match="install the same commit"):
        list(computed_parts(place / "parts", [1, 2], work.write_square))


def test_an_address_without_a_cluster_says_what_to_do(place, work, monkeypatch):
    monkeypatch.setenv("KLEAR_RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(RuntimeError, match="ray start --address=HOST:PORT --num-cpus=0"):
        list(computed_parts(place / "parts", [1, 2], work.write_square))


def test_parts_that_hang_are_ended_with_the_stage(cluster, place, work, tmp_path):
    """They hold every CPU, but they are ours: the stage does not wait for others."""

    def stage() -> None:
        with (
            watched("collect", 1 / 60) as beat,
            listening(lambda done, total, note: beat(note)),
        ):
            threading.Thread(target=until_one_hangs, args=(beat,), daemon=True).start()
            list(computed_parts(place / "parts", [str(tmp_path)] * 3, work.hang))

    def until_one_hangs(beat: Callable[[str], None]) -> None:
        while not list(tmp_path.iterdir()):
            beat("starting")
            time.sleep(0.05)

    with pytest.raises(Stalled, match="collect made no progress"):
        stage()

    deadline = time.monotonic() + 120
    while any(Path("/proc", name.name).exists() for name in tmp_path.iterdir()):
        assert time.monotonic() < deadline, "a part outlived its stage"
        time.sleep(0.1)
