"""Hub datasets: one commit, streamed, in pieces that make up the whole. A folder stands in."""

import json
from pathlib import Path

import pytest

from configs.settings.sources import CollectSettings, Source
from eval.records import Problem
from eval.tables import read_table
from tasks.data.collect import collect
from tasks.data.sources import Piece, hub_rows, planned, resolved

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch) -> Path:
    """A dataset of three files with two rows each."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder = tmp_path / "clone"
    folder.mkdir()
    for i in range(3):
        rows = [{"problem": f"p{2 * i + j}", "answer": j} for j in range(2)]
        text = "".join(json.dumps(r) + "\n" for r in rows)
        (folder / f"train-{i}.jsonl").write_text(text)
    return folder


def kept(out: Path, *sources: Source) -> list[str]:
    out.mkdir()
    collect.body(out, settings=CollectSettings(sources=sources), seed=0)
    return [p.prompt for p in read_table(out / "kept.parquet", Problem)]


def test_the_pieces_of_a_dataset_make_up_the_whole_in_order(tmp_path, clone):
    source = Source(name="t", kind="hub", dataset=str(clone), data_files=("train-*.jsonl",))
    parts, _ = planned(CollectSettings(sources=(source,)), tmp_path / "scratch")
    assert len(parts) == 3
    rows = [r.value for part in parts for r in hub_rows(source, part.pieces[0], "t")]
    assert [row["problem"] for row in rows if row] == [f"p{i}" for i in range(6)]


def test_a_dataset_is_collected_through_datasets(tmp_path, clone):
    by_id = Source(name="id", kind="hub", dataset=str(clone))
    by_files = Source(
        name="f", kind="hub", dataset=str(clone), data_files=("train-[12].jsonl",), split="test"
    )
    limited = Source(name="l", kind="hub", dataset=str(clone), limit=3)
    found = kept(tmp_path / "out", by_id, by_files, limited)
    assert found == [*(f"p{i}" for i in range(6)), "p2", "p3", "p4", "p5", "p0", "p1", "p2"]


def test_only_what_is_no_commit_is_asked_for_and_a_hub_out_of_reach_is_one_line(monkeypatch):
    asked: list[tuple[str, str]] = []

    class Api:
        def dataset_info(self, dataset, revision):
            asked.append((dataset, revision))
            if revision == "gone":
                raise ConnectionError("no route\nto host")
            return type("Info", (), {"sha": COMMIT})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    source = Source(name="s", kind="hub", dataset="a/b", revision=COMMIT)
    assert resolved(source, "s") == COMMIT
    assert resolved(source.model_copy(update={"revision": "v2"}), "s") == COMMIT
    assert asked == [("a/b", "v2")]
    with pytest.raises(ValueError, match=r"source 's': cannot load dataset=a/b revision=gone") as e:
        resolved(source.model_copy(update={"revision": "gone"}), "s")
    assert "cannot be reached (no route). Without a network, name local copies" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_file_that_breaks_off_is_named_with_its_row(clone):
    with (clone / "train-1.jsonl").open("a") as file:
        file.write("{broken\n")
    source = Source(name="s", kind="hub", dataset=str(clone))
    with pytest.raises(ValueError, match=r"source 's': .*clone cannot be read after row \d"):
        list(hub_rows(source, Piece(), "s"))
