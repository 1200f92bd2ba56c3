"""The journal of finished samples survives kills at any byte."""

from eval.records import Sample
from training.engines.journal import Journal


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


def test_a_sample_is_readable_by_others_as_soon_as_it_is_appended(tmp_path):
    with Journal(tmp_path / "j.jsonl") as journal:
        journal.append(sample(1))
        assert (tmp_path / "j.jsonl").read_bytes().endswith(b"\n")
