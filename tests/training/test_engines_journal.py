"""The journal of finished samples survives kills at any byte."""

import os
import subprocess
import sys
from pathlib import Path

from eval.records import Sample
from training.engines import journal as module
from training.engines.journal import Journal

ROOT = Path(__file__).resolve().parents[2]


def sample(i: int, text: str = "text") -> Sample:
    return Sample(problem_id=f"p{i % 3}", index=i, model="m", text=f"{text} {i} ∑\n")


def test_samples_come_back_in_the_order_of_the_keys(tmp_path):
    with Journal(tmp_path / "j.jsonl") as journal:
        for i in (4, 0, 2):
            journal.append(sample(i))
        keys = [("p0", 0), ("p1", 1), ("p2", 2), ("p1", 4)]
        assert list(journal.samples(keys)) == [sample(0), sample(2), sample(4)]


def test_a_file_cut_at_any_byte_keeps_every_whole_line_and_takes_new_ones(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        for i in range(3):
            journal.append(sample(i))
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert len(journal) == whole[:cut].count(b"\n")
            journal.append(sample(7))
        with Journal(path) as journal:
            assert len(journal) == whole[:cut].count(b"\n") + 1
            assert list(journal.samples([("p1", 7)])) == [sample(7)]


def test_blocks_of_zeros_left_by_a_power_cut_are_dropped(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append(sample(0))
    path.write_bytes(path.read_bytes() + b"\0" * 512 + b"\n")
    with Journal(path) as journal:
        assert len(journal) == 1


def test_the_first_sample_of_a_key_stays(tmp_path):
    with Journal(tmp_path / "j.jsonl") as journal:
        journal.append(sample(1, "first"))
        journal.append(sample(1, "second"))
        assert list(journal.samples([("p1", 1)])) == [sample(1, "first")]


FULL = """
import resource, signal, sys
from pathlib import Path
from eval.records import Sample
from training.engines.interface import EngineError
from training.engines.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
with Journal(Path(sys.argv[1]), sync_each=True) as journal:
    try:
        for i in range(100):
            journal.append(Sample(problem_id=f"p{i}", index=0, model="m", text="x" * 900))
    except EngineError as error:
        print(len(journal), error)
"""


def test_a_disk_that_takes_no_more_is_one_line_and_what_was_written_is_kept(tmp_path):
    """The kernel refuses to let the file grow beyond 10,000 bytes, in the middle of a line."""
    path = tmp_path / "j.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()
    kept = int(line.split()[0])
    assert 5 < kept < 12
    assert f"{path}: File too large, so no answer can be kept: make room and run again" in line
    assert f"the {kept} answers on file are kept" in line
    with Journal(path) as journal:
        assert len(journal) == kept
        journal.append(sample(1))
        assert len(journal) == kept + 1
    assert path.read_bytes().endswith(b"\n")


def test_each_sample_is_forced_to_disk_before_the_call_returns_where_it_is_paid_for(
    tmp_path, monkeypatch
):
    forced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda fd: (forced.append(fd), real(fd))[1])
    with Journal(tmp_path / "j.jsonl", sync_each=True) as journal:
        for i in range(5):
            journal.append(sample(i))
            assert len(forced) == i + 1
