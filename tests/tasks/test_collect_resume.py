"""A kill in the middle of collect: finished files stay read, and the result is the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.settings.sources import CollectRuntime, CollectSettings, Source
from tasks.data import sources as module
from tasks.data.collect import collect
from tasks.data.sources import collected_files
from tasks.store.store import content_digest, scan

LOOKUP = {"tables": {"t/train": {"files": ["looked.jsonl"], "text_field": "text"}}}


@pytest.fixture
def settings(tmp_path: Path) -> CollectSettings:
    for name in "abcd":
        rows = [{"p": f"{name}{i}", "a": str(i) if i % 3 else ""} for i in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    rows = [{"p": "-", "a": "1", "dataset": "t", "split": "train", "index": i} for i in range(3)]
    (tmp_path / "refer.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "looked.jsonl").write_text("".join(f'{{"text": "found {i}"}}\n' for i in (0, 1)))
    fields: dict[str, Any] = {"prompt_field": "p", "answer_field": "a"}
    sources = (
        Source(name="letters", files=("[a-d].jsonl",), **fields),
        Source(name="two", files=("[a-d].jsonl",), limit=5, **fields),
        Source(name="made", kind="generated", family="countdown", size=5),
        Source.model_validate(
            {"name": "refers", "files": ["refer.jsonl"], "lookup": LOOKUP, **fields}
        ),
    )
    return CollectSettings(root=str(tmp_path), sources=sources)


def run(out: Path, settings: CollectSettings) -> dict[str, float]:
    out.mkdir(exist_ok=True)
    return dict(collect.body(out, settings=settings, seed=3))


def digest(out: Path) -> str:
    return content_digest(scan(out))


def test_what_is_read_in_pieces_is_what_the_files_hold(tmp_path, settings):
    metrics = run(tmp_path / "out", settings)
    kept = [f"kept/{s.name}" for s in settings.sources]
    # Of each letter rows 1 and 2 have an answer; rows 0 and 3 have none.
    assert [metrics[name] for name in kept] == [8, 5, 5, 2]
    assert metrics["rejected/letters"] == 8
    assert metrics["rejected/two"] == 5  # rows 0 and 3 of a and b, row 0 of c
    assert metrics["rejected/refers"] == 1  # the table has no row 2


@pytest.mark.parametrize("fails_at", [1, 4, 7])
def test_a_run_that_failed_anywhere_goes_on_to_the_same_digest(
    tmp_path, settings, monkeypatch, fails_at
):
    read: list[module.Part] = []
    real = module.read_source

    def fails(part, *rest):
        read.append(part)
        rows = real(part, *rest)
        yield next(rows)
        if len(read) == fails_at + 7:
            raise ConnectionError("the wire is cut")
        yield from rows

    monkeypatch.setattr(module, "read_source", fails)
    undisturbed = run(tmp_path / "whole", settings)
    with pytest.raises(ConnectionError):
        run(tmp_path / "cut", settings)
    (tmp_path / "looked.jsonl").unlink()  # a lookup table is read once
    with monkeypatch.context() as patch:
        patch.setattr(module, "_files", lambda table, *_: sorted(tmp_path.glob(table.files[0])))
        assert run(tmp_path / "cut", settings) == undisturbed
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    whole, first, again = read[:7], read[7 : fails_at + 7], read[fails_at + 7 :]
    assert (first, again) == (whole[:fails_at], whole[fails_at - 1 :])


def test_the_number_of_workers_shows_nowhere(tmp_path, settings):
    more = settings.model_copy(update={"runtime": CollectRuntime(workers=2)})
    assert run(tmp_path / "two", more) == run(tmp_path / "one", settings)
    assert digest(tmp_path / "two") == digest(tmp_path / "one")


def test_a_run_that_goes_on_reads_the_commit_it_began_with(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
    source = Source(name="h", kind="hub", dataset=str(tmp_path / "hub"))
    settings = CollectSettings(sources=(source,))
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr("tasks.data.sources.resolved", lambda *_: next(commits))
    monkeypatch.setattr(module, "read_source", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "out", settings)
    monkeypatch.setattr(module, "read_source", lambda *_: iter([_PROBLEM]))
    run(tmp_path / "out", settings)
    (facts,) = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert facts["revision"] == "a" * 40


_PROBLEM = module.to_problem({"problem": "1+1?", "answer": "2"}, Source(name="h", files=("x",)))


def test_the_sources_and_their_licences_stand_beside_the_problems(tmp_path, settings):
    (tmp_path / "ds.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
    clone = Source(use="deepscaler", files=("ds.jsonl",))
    run(tmp_path / "out", CollectSettings(root=str(tmp_path), sources=(*settings.sources, clone)))
    facts = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert [f["name"] for f in facts] == ["letters", "two", "made", "refers", "deepscaler"]
    assert facts[0] == {"name": "letters", "dataset": "[a-d].jsonl", "revision": "", "licence": ""}
    assert facts[2]["dataset"] == "generated: countdown"
    assert facts[4] == {
        "name": "deepscaler",
        "dataset": "agentica-org/DeepScaleR-Preview-Dataset (local files)",
        "revision": "",
        "licence": "mit",
    }


def test_the_files_of_lookup_tables_are_part_of_the_key(settings, tmp_path):
    assert tmp_path / "looked.jsonl" in collected_files(settings)
