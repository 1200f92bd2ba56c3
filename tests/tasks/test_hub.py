"""Hub datasets: one commit, streamed, in pieces that make up the whole (a folder stands in)."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import GatedRepoError

from klear.configs.settings.engines import EngineSettings
from klear.configs.settings.evaluation import (
    WITH_FORMAT,
    EvaluateSettings,
    Evaluation,
    named_protocols,
)
from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Problem
from klear.eval.rows.reading import source_of
from klear.tasks.data.collect import collect
from klear.tasks.data.sources import Piece, piece_rows, planned, resolved
from klear.tasks.models.eval_model import identified, settings_to_collect
from tests.eval.evaluations_by_hand import math_problem
from tests.tasks.manifests_by_hand import folder_with, jsonl, kept_in, rejected_in

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for i in range(3):
        rows = ({"problem": f"p{2 * i + j}", "answer": j} for j in range(2))
        jsonl(tmp_path / "clone" / f"train-{i}.jsonl", *rows)
    return tmp_path / "clone"


def collected(out: Path, settings: CollectSettings) -> list[Problem]:
    out.mkdir()
    collect.body(out, settings=settings, seed=0)
    return kept_in(out)


def test_the_pieces_of_a_dataset_make_up_the_whole_in_order(tmp_path, clone):
    by_id = Source(name="id", kind="hub", dataset=str(clone))
    files = {"data_files": ("train-[12].jsonl",), "split": "test"}
    by_files = Source(name="f", kind="hub", dataset=str(clone), **files)
    limited = Source(name="l", kind="hub", dataset=str(clone), limit=3)
    parts = planned(CollectSettings(sources=(by_id,)), tmp_path / "scratch")
    assert len(parts) == 3
    three = CollectSettings(sources=(by_id, by_files, limited))
    prompts = [p.prompt for p in collected(tmp_path / "out", three)]
    assert prompts == [*(f"p{i}" for i in range(6)), "p2", "p3", "p4", "p5", "p0", "p1", "p2"]
    with (clone / "train-1.jsonl").open("a") as file:
        file.write("{broken\n")
    with pytest.raises(ValueError, match=r"source 'id': cannot read dataset=.*clone .* in row 2"):
        list(piece_rows(Piece(), by_id, Path(), "id"))


@pytest.mark.parametrize(("last", "letters"), [(3, ["A", "B", "C"]), (0, ["B", "C", "A"])])
def test_options_of_a_dataset_read_by_shape_are_counted_from_where_its_rows_count_them(
    tmp_path, clone, last, letters
):
    """Only the last file tells: it names the last of three options, or has a 0."""
    for i, number in enumerate((1, 2, last)):
        row = {"question": f"q{i}?", "choices": ["x", "y", "z"], "answer": number}
        jsonl(clone / f"train-{i}.jsonl", row)
    source = Source(name="s", kind="hub", dataset=str(clone), by_shape=True)
    collected_rows = collected(tmp_path / "out", CollectSettings(sources=(source,)))
    assert [p.answer for p in collected_rows] == letters


def test_a_column_without_a_value_in_the_first_file_is_read_in_the_others(tmp_path, clone):
    shards: list[dict[str, Any]] = [
        {"problem": ["p0"], "answer": pa.nulls(1), "steps": pa.array([[]], pa.list_(pa.null()))},
        {"problem": ["p1"], "answer": ["7"], "steps": [["one"]], "more": ["a new column"]},
        {"problem": ["p2"], "answer": ["8"], "steps": [["two"]], "more": pa.nulls(1)},
    ]
    folder = tmp_path / "parquet"
    folder.mkdir()
    for i, shard in enumerate(shards):
        pq.write_table(pa.table(shard), folder / f"train-{i:05}-of-00003.parquet")
    source = Source(name="s", kind="hub", dataset=str(folder))
    rows = [row.value or {} for row in piece_rows(Piece(), source, Path(), "s")]
    assert [(r["answer"], r["steps"]) for r in rows] == [(None, []), ("7", ["one"]), ("8", ["two"])]
    problems = collected(tmp_path / "out", CollectSettings(sources=(source,)))
    assert [(p.prompt, p.answer) for p in problems] == [("p1", "7"), ("p2", "8")]
    reasons = [r.reason for r in rejected_in(tmp_path / "out")]
    assert len(reasons) == 1
    assert "field answer: missing" in reasons[0]
    jsonl(clone / "train-0.jsonl", {"problem": "p0", "answer": None})
    for i in (1, 2):
        jsonl(clone / f"train-{i}.jsonl", {"problem": f"p{i}", "answer": "7"})
    rows = piece_rows(Piece(), source.model_copy(update={"dataset": str(clone)}), Path(), "s")
    assert [(row.value or {})["answer"] for row in rows] == [None, "7", "7"]


def test_only_what_is_no_commit_is_asked_for(monkeypatch):
    info = Mock(return_value=Mock(sha=COMMIT))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: Mock(dataset_info=info))
    source = Source(name="s", kind="hub", dataset="a/b", revision=COMMIT)
    assert resolved(source, "s") == COMMIT
    info.assert_not_called()
    assert resolved(source.model_copy(update={"revision": "v2"}), "s") == COMMIT
    assert (info.call_args.args, info.call_args.kwargs) == (("a/b",), {"revision": "v2"})


def evaluation(model: str) -> Evaluation:
    engine = EngineSettings(kind="transformers", model=model, revision="v2")
    return Evaluation(engine=engine, evaluate=EvaluateSettings())


def test_a_hub_model_is_named_by_the_commit_that_its_revision_stands_for(tmp_path, monkeypatch):
    folder = tmp_path / COMMIT
    folder.mkdir()
    revisions: list[tuple[str, str]] = []

    def snapshot(name: str, *, revision: str, allow_patterns: list[str]) -> str:
        assert not [p for p in allow_patterns if "safetensors" in p]  # the engine fetches weights
        revisions.append((name, revision))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    settings = identified(evaluation("org/tiny"))
    assert revisions == [("org/tiny", "v2")]
    assert (settings.model, settings.checkpoint) == ("org/tiny", COMMIT)
    assert settings.engine.revision == COMMIT


def test_a_checkpoint_that_says_how_it_was_asked_is_asked_so_and_any_other_with_an_instruction(
    tmp_path,
):
    protocols = tuple(named_protocols().values())[:2]
    plain = evaluation(str(tmp_path)).model_copy(
        update={"evaluate": EvaluateSettings(protocols=protocols)}
    )
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("t")
    other = identified(plain)
    assert {p.question for p in other.evaluate.protocols} == {WITH_FORMAT}
    kwargs = {"enable_thinking": False}
    says = {"question": "{prompt}", "chat_template_kwargs": kwargs}
    (tmp_path / "chat_format.json").write_text(json.dumps(says))
    ours = identified(plain)
    assert {p.question for p in ours.evaluate.protocols} == {"{prompt}"}
    assert ours.template == f"{other.template} {json.dumps(kwargs)}"


def test_what_the_hub_does_not_give_is_one_line_that_says_why(monkeypatch):
    request = httpx.Request("GET", "http://127.0.0.1")

    def refuse(*_: object, **__: object) -> None:
        message = "403 Client Error.\n\nAccess is restricted."
        raise GatedRepoError(message, response=httpx.Response(403, request=request))

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    why = r"403 Client Error\. Access is restricted\."
    with pytest.raises(ValueError, match=rf"^org/none .*fetched from the hub: {why}$"):
        identified(evaluation("org/none"))
    place = r"dataset=org/none revision=v2 split=train"
    says = rf"^source 's': cannot read {place}: {why}\. Without a network, name local.*$"
    with pytest.raises(ValueError, match=says):
        resolved(Source(name="s", kind="hub", dataset="org/none", revision="v2"), "s")


def parquet(path: Path, *rows: dict[str, Any]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def of_file(file: Path) -> CollectSettings:
    return settings_to_collect(source_of("mine", file))


def test_a_parquet_of_another_kind_is_read_by_its_fields_and_one_of_ours_as_it_is(tmp_path):
    tests = [{"input": "1\n", "output": "2\n"}]
    file = parquet(tmp_path / "theirs.parquet", {"question": "Add one.", "tests": tests})
    (problem,) = collected(tmp_path / "o", of_file(file))
    assert problem.prompt == "Add one."
    assert (problem.tests.kind, len(problem.tests.cases)) == ("stdin", 1)
    other = parquet(tmp_path / "o.parquet", {"prompt": "Add.", "domain": "math", "numbers": 7})
    with pytest.raises(ValueError, match="gives no problem: 1 rows are rejected"):
        collected(tmp_path / "p", of_file(other))
    rows = [math_problem(p, "old") for p in ("a", "b")]
    folder_with(tmp_path, kept=rows)
    problems = collected(tmp_path / "ours", of_file(tmp_path / "kept.parquet"))
    assert problems == [p.model_copy(update={"source": "mine"}) for p in rows]


def test_the_entry_point_of_a_row_is_the_function_its_tests_call(tmp_path):
    row = {
        "task_id": "x/0",
        "prompt": "def add(a, b):\n    ...",
        "canonical_solution": "    return a + b",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    for name in ("add", ""):
        file = jsonl(tmp_path / "rows.jsonl", {**row, "entry_point": name})
        (problem,) = collected(tmp_path / f"out{name}", of_file(file))
        assert problem.tests.fn_name == (name or None)
