"""Parts on a cluster of two nodes."""

import threading

import psutil
import pytest
from processes import eventually, left

from klear.eval.sandbox import MachineUnfit
from klear.tasks.stage.graph import Node, Stalled, run_graph, watched
from klear.tasks.stage.parts import computed_parts
from klear.tasks.stage.progress import listening
from tests.cluster import parts_of_tests as work


def test_a_node_that_does_not_see_the_store_says_what_to_do(cluster, place):
    cluster.kill(cluster.nodes[-1])
    blind = cluster.start(blind=True)
    try:
        with pytest.raises(MachineUnfit, match="must lie on a file system that they share"):
            list(computed_parts(place / "parts", list(range(20)), work.write_slowly))
    finally:
        cluster.kill(blind)


def test_what_a_part_raises_is_raised_here_and_finished_parts_stay(cluster, place):
    with pytest.raises(ValueError, match=r"^three is not to be squared$"):
        list(computed_parts(place / "parts", [1, 2, 3, 4], work.refuse_three, workers=2))
    assert {p.name for p in (place / "parts").iterdir()} <= {"00000", "00001", "00003"}

    folders = computed_parts(place / "parts", [1, 2, 3, 4], work.write_square, workers=2)

    assert [int((f / "square").read_text()) for f in folders] == [1, 4, 9, 16]


def test_a_part_that_is_lost_every_time_is_an_error_with_advice(cluster, place):
    with pytest.raises(RuntimeError, match=r"part 00000 was lost 4 times .* smaller parts"):
        list(computed_parts(place / "parts", [0, 1], work.die_at_zero, workers=2))


def test_parts_that_hang_are_ended_with_the_stage(cluster, place, tmp_path, silence):
    """They hold every CPU, but they are ours: the stage does not wait for others."""

    def until_one_hangs() -> None:
        assert eventually(lambda: list(tmp_path.iterdir()))
        silence()

    def stage() -> None:
        with watched("collect", 30) as beat, listening(lambda _, __, note: beat(note)):
            threading.Thread(target=until_one_hangs, daemon=True).start()
            list(computed_parts(place / "parts", [str(tmp_path)] * 3, work.hang))

    with pytest.raises(Stalled, match="collect made no progress"):
        run_graph({"collect": Node((), stage)})

    began = {file.name for file in tmp_path.iterdir()}
    assert left(p for p in psutil.process_iter() if str(p.pid) in began) == []
