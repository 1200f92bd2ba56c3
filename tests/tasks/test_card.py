"""Every published dataset says what it is, where its rows are from and what each step left."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from markdown_it import MarkdownIt

from klear.configs.settings.base import Settings
from klear.eval.records import Problem, Rejected, Sample
from klear.eval.records.tables import write_table
from klear.tasks.data.split_rows import split_rows
from klear.tasks.engine.run import Run, active
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.observe.pages import Cards
from klear.tasks.store.store import Artifact, Store
from tests.tasks.pages_by_hand import Elements, table_rows

STEPS = "Rows by source and step"
pytestmark = pytest.mark.usefixtures("in_this_process")


class Knobs(Settings):
    threshold: float = 0.5
    note: str = "<script>alert(1)</script>"


def problem(number: int, source: str) -> Problem:
    return Problem(domain="math", prompt=f"{number} + 1 = ?", answer="1", source=source)


@stage(version=1)
def gather(out: Path, *, settings: Knobs) -> Metrics:
    rows = [problem(i, "textbook") for i in range(7)] + [problem(i, "forum") for i in range(7, 10)]
    write_table(out / "kept.parquet", Problem, rows)
    bad = [Rejected(id="x", source="forum", reason="no answer", row="{}")]
    write_table(out / "rejected.parquet", Rejected, bad)
    sources = [
        {"name": "textbook", "dataset": "someone/textbook", "revision": "abc", "licence": "MIT"},
        {"name": "forum", "dataset": "someone/forum", "revision": "", "licence": "CC-BY-4.0"},
        {"name": "scraped", "dataset": "someone/scraped", "revision": "", "licence": ""},
    ]
    (out / "sources.json").write_text(json.dumps(sources))
    return {}


@stage(version=1)
def thin_out(out: Path, problems: Artifact, *, settings: Knobs, seed: int) -> Metrics:
    split_rows(problems.file("kept.parquet"), [(0, "first"), (8, "late"), (9, "late")], out)
    return {}


@stage(version=1)
def answer(out: Path, problems: Artifact, *, settings: Knobs) -> Metrics:
    rows = [Sample(problem_id=str(i), index=0, model="m", text="4") for i in range(5)]
    write_table(out / "samples.parquet", Sample, rows)
    return {}


@stage(version=1)
def train(out: Path, problems: Artifact, *, settings: Knobs) -> Metrics:
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "model.safetensors").write_text("weights")
    write_table(out / "kept.parquet", Problem, [])
    return {}


def cards(store: Path) -> dict[str, str]:
    return {p.parent.parent.name: p.read_text() for p in store.glob("*/*/README.md")}


def run_all(store: Path, threshold: float = 0.5) -> dict[str, Artifact]:
    observers = (Cards(Store(store)),)
    with active(Run(store=Store(store), seed=3, observers=observers)):
        settings = Knobs(threshold=threshold)
        first = gather(settings=Knobs())
        second = thin_out(first, settings=settings)
        return {
            "gather": first,
            "thin_out": second,
            "answer": answer(second, settings=settings),
            "train": train(second, settings=settings),
        }


def test_the_card_counts_every_source_at_every_step_and_names_what_it_was_made_of(tmp_path):
    results = run_all(tmp_path)
    card = cards(tmp_path)["thin_out"]
    rows = table_rows(card, STEPS)
    assert rows["Source"] == ["gather", "thin_out"]
    assert rows["textbook"] == ["7", "6 of 7"]
    assert rows["forum"] == ["3 of 4", "1 of 3"]
    assert rows["all"] == ["10 of 11", "7 of 10"]
    textbook = table_rows(card, "Sources and licences")["textbook"]
    assert textbook == ["someone/textbook", "abc", "MIT"]
    settings = yaml.safe_load(card.split("```yaml\n")[1].split("```")[0])
    assert (settings["settings"]["threshold"], settings["seed"]) == (0.5, 3)
    first = results["gather"]
    assert results["thin_out"].digest in card
    assert table_rows(card, "Lineage")["gather"] == [first.key, first.digest]
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == ["cc-by-4.0", "mit", "unknown"]
    assert {c["data_files"] for c in front["configs"]} == {"kept.parquet", "rejected.parquet"}
    assert not Elements(MarkdownIt().render(card)).tags & {"script"}
    rows = table_rows(cards(tmp_path)["answer"], STEPS)  # whose rows name no source
    assert rows["textbook"] == ["7", "6 of 7", "–"]
    assert rows["all"] == ["10 of 11", "7 of 10", "5"]
    assert "train" not in cards(tmp_path)  # a checkpoint is no dataset
    # The card is no part of the content: with another threshold the rows are the same.
    second = run_all(tmp_path, threshold=0.25)["thin_out"]
    assert results["thin_out"].key != second.key
    assert results["thin_out"].digest == second.digest


def test_without_an_ancestor_or_a_file_of_one_the_card_says_what_is_left(tmp_path):
    results, store = run_all(tmp_path), Store(tmp_path)
    next(tmp_path.glob("gather/*/kept.parquet")).unlink()
    forced = {"observers": (Cards(store),), "force": frozenset({"answer"})}
    with active(Run(store=store, seed=3, **forced)):
        answer(results["thin_out"], settings=Knobs())
    assert table_rows(cards(tmp_path)["answer"], STEPS)["all"][-1] == "5"
    store.discard("gather", results["gather"].key)
    with active(Run(store=store, seed=3, **forced)):
        answer(results["thin_out"], settings=Knobs())
    assert table_rows(cards(tmp_path)["answer"], STEPS)["Source"] == ["thin_out", "answer"]


def test_a_page_that_cannot_be_written_leaves_the_scratch_to_go_on_from(tmp_path):
    store = Store(tmp_path)
    work = store.work("distill", "k")
    (work / ".resume").mkdir(parents=True)
    (work / ".resume" / "journal.jsonl").write_text("paid for")
    full_disk = Mock(side_effect=OSError("No space left on device"))
    fields = {"stage": "distill", "version": 1, "key": "k", "settings": {}, "seconds": 1.0,
              "pipeline_run": "", "created": ""}  # fmt: skip
    with pytest.raises(OSError, match="No space"):
        store.publish(work, seal=full_disk, **fields)
    assert (work / ".resume" / "journal.jsonl").read_text() == "paid for"
    folder = store.publish(work, **fields).folder
    assert not (folder / ".resume").exists()
