"""What a plan learns from local files: how many problems, how long, and golds for nobody."""

import csv
import gzip
import io
import json
import random
from math import isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klear.configs.settings.sources import Source
from klear.tasks.planning import source_rows
from klear.tasks.planning.source_rows import count_tokens, facts_of_source
from tests.shared_data import DATA, shared_rows

_draw = random.Random(0)
ROWS = [
    {
        "problem": f"What is {i} + 1?" + "".join(f" Not {_draw.random()}." for _ in range(9)),
        "answer": str(i + 1),
        "of": "b" if i % 4 == 0 else "a",
    }
    for i in range(800)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def table(delimiter: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ROWS[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return text.getvalue().encode()


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), sink)
    return sink.getvalue()


FILES = {
    "a.jsonl": lambda: LINES + b"\n",
    "a.json": lambda: json.dumps(ROWS, indent=1).encode(),
    "a.jsonl.gz": lambda: gzip.compress(LINES),
    "a.json.gz": lambda: gzip.compress(json.dumps(ROWS).encode()),
    "a.jsonl.zst": lambda: pa.compress(LINES, "zstd", asbytes=True),
    "a.csv": lambda: table(","),
    "a.tsv": lambda: table("\t"),
    "a.parquet": parquet,
}


def facts(folder: Path, name: str, content: bytes, **more: Any) -> source_rows.SourceFacts:
    (folder / name).write_bytes(content)
    return facts_of_source(
        Source(name="mine", files=("a.*",), prompt_field="problem", **more), folder
    )


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_counted(tmp_path, name):
    content = FILES[name]()
    counted = facts(tmp_path, name, content)
    assert (counted.problems, counted.estimated) == (800, False)
    assert facts(tmp_path, name, content, where={"of": "b"}).problems == 200
    assert facts(tmp_path, name, content, limit=30).problems == 30
    assert facts(tmp_path, name, content, limit=3000).problems == 800


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("a.json", "a.json.gz")])
def test_of_a_large_file_the_first_rows_are_read_and_the_lines_counted(tmp_path, name, monkeypatch):
    monkeypatch.setattr(source_rows, "MOST_READ", 1000)
    monkeypatch.setattr(source_rows, "FIRST_ROWS", 100)
    counted = facts(tmp_path, name, FILES[name]())
    assert counted.problems == pytest.approx(800, abs=1)  # a header, an empty line
    assert counted.estimated == (name != "a.parquet")  # its footer says it
    part = facts(tmp_path, name, FILES[name](), where={"of": "b"})
    assert (part.problems, part.estimated) == (pytest.approx(200, abs=1), True)


def test_rows_that_are_no_problems_do_not_count_and_golds_are_said(tmp_path):
    more = [
        {"problem": "What is 1?", "answer": ""},
        {"problem": "Is 4 even?", "answer": "yes"},
        {"problem": "Show it.", "answer": "see the figure"},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in [*ROWS[:30], *more]).encode()
    counted = facts(tmp_path, "a.jsonl", lines)
    assert counted.problems == 32
    assert counted.golds == {"unjudgeable": 1, "guessable": 1}


def test_the_hub_is_as_large_as_the_catalogue_says_and_of_what_is_not_there_nothing_is_known():
    def problems(**source) -> float:
        return facts_of_source(Source(**source), Path()).problems

    assert problems(use="gsm8k_train") == 7473
    assert problems(use="gsm8k_train", limit=3000) == 3000
    assert problems(use="gsm8k") == 1319
    assert isnan(problems(use="gsm8k_train", split="test"))  # its entry reads another
    assert isnan(problems(use="gsm8k_train", where={"question": "A*"}))
    assert isnan(problems(name="mine", kind="hub", dataset="some/body"))
    assert isnan(problems(name="mine", files=("none.jsonl",)))
    assert isnan(problems(name="mine", files=("none.jsonl",), limit=9))


@pytest.mark.parametrize("tokenizer", ["qwen3", "smollm2", "deepseek_v3"])
def test_tokens_are_counted_about_as_tokenizers_count_them(tokenizer):
    from tokenizers import Tokenizer

    file = DATA / f"tokenizers/{tokenizer}/tokenizer.json"
    if not file.exists():
        pytest.skip(f"needs ../shared/data/tokenizers/{tokenizer}")
    counter = Tokenizer.from_file(str(file))
    texts = [row["problem"] for row in shared_rows("math_train/train")[:200]]
    counted = sum(len(e.ids) for e in counter.encode_batch(texts))
    assert sum(map(count_tokens, texts)) == pytest.approx(counted, rel=0.14)
