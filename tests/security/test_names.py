"""Names that data, manifests and people bring: none of them reaches beyond its folder."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Sample, problem_id
from klear.eval.records.tables import read_table
from klear.flows.cli.main import main
from klear.tasks.answers.distill import requests_of, write_outputs
from klear.tasks.data.collect import collect
from klear.tasks.store.store import FileEntry, InputRef, Manifest
from klear.training.engines.generate import Journal, journal_path
from tests.tasks.manifests_by_hand import jsonl, kept_in

NAMES = (
    "../../escape", "/etc/passwd", "..", "a/../../b", "nul\0byte", "x" * 100_000, "line\nbreak",
    "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/x", "\N{ONE DOT LEADER}\N{ONE DOT LEADER}/x",
    "\N{DIVISION SLASH}etc\N{DIVISION SLASH}passwd", "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe",
    "p\N{CYRILLIC SMALL LETTER A}ypal", "~root", "$(touch x)", "; rm -rf .", "-rf", "con", " ",
    "<script>alert(1)</script>", "{{ 7 * 7 }}", "%2e%2e%2f",
)  # fmt: skip


def below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_an_id_is_data_and_no_path(tmp_path: Path, name: str) -> None:
    """A source and a row of such a name are collected, and an answer to such a problem is kept, as
    those of any other, and no file is called after them."""
    root, out = tmp_path / "in", tmp_path / "a" / "b" / "out"
    out.mkdir(parents=True)
    jsonl(root / "r.jsonl", {"id": name, "problem": "1+1?", "answer": "2"})
    source = Source(name=name, files=("r.jsonl",))
    collect.body(out, settings=CollectSettings(root=str(root), sources=(source,)), seed=0)
    (kept,) = kept_in(out)
    assert (kept.id, kept.source) == (problem_id("1+1?"), name)
    sample = Sample(problem_id=name, index=0, model=name, text="2")
    with Journal(journal_path(out)) as journal:
        journal.append(sample)
    named = kept.model_copy(update={"id": name})
    write_outputs(out, [named], requests_of([named], 1, 0), EngineSettings(kind="scripted"))
    assert list(read_table(out / "samples.parquet", Sample)) == [sample]
    written = {p for p in below(out) if not p.startswith(".resume")}
    assert written == {"kept.parquet", "rejected.parquet", "samples.parquet", "sources.json"}
    beside = {"in", "in/r.jsonl", "a", "a/b", "a/b/out"}
    assert below(tmp_path) == beside | {f"a/b/out/{p}" for p in below(out)}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "con"])
def test_a_manifest_cannot_name_a_stage_or_a_key_beside_the_store(name: str) -> None:
    with pytest.raises(ValidationError):
        InputRef(stage=name, key="k", digest="")
    with pytest.raises(ValidationError):
        InputRef(stage="s", key=name, digest="")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x"])
def test_a_manifest_cannot_name_a_file_beside_its_folder(name: str) -> None:
    with pytest.raises(ValidationError, match="outside of the result"):
        Manifest(stage="s", version=1, key="k", digest="", settings={}, seconds=0, created="",
                 pipeline_run="", files={name: FileEntry(bytes=1, sha256="")})  # fmt: skip


@pytest.mark.parametrize("name", [n for n in NAMES if not Path(n[:99].replace("\0", "")).exists()
                                  and n != "~root"])  # fmt: skip
def test_a_name_that_no_result_has_is_said_and_not_opened(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["lineage", "--", name]) == 1
    assert "the store has no result" in capsys.readouterr().out
