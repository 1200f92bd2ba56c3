import argparse
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.tables import read_table
from flows.decontaminate_command import add_arguments, benchmark_names, run
from tasks.overlaps import Hit

ITEM = "How many ways are there to place nine rooks on a torus board safely?"


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(a) for a in arguments]))


def written(path: Path, *rows: object) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return written(tmp_path / "bench.jsonl", {"problem": ITEM})


def test_rows_keep_every_field_and_the_rejected_ones_say_why(tmp_path: Path, bench: Path):
    clean = {"id": "a", "prompt": "What is 2+2?", "extra": {"x": [1, None]}}
    leaked = {"id": "b", "prompt": f"Solve: {ITEM}", "extra": 3}
    source = written(tmp_path / "in.jsonl", clean, leaked)
    assert command(source, "--against", bench, "--out", tmp_path / "out") == 0
    assert lines(tmp_path / "out/kept.jsonl") == [clean]
    (rejected,) = lines(tmp_path / "out/rejected.jsonl")
    assert rejected.pop("reason").endswith("is a 9-gram of bench item 1 (coverage 1.00)")
    assert rejected == leaked
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert (hit.row_id, hit.benchmark, hit.item_id, hit.coverage) == ("b", "bench", "1", 1.0)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "decontamination.html",
        "hits.parquet",
        "kept.jsonl",
        "rejected.jsonl",
    ]


def test_kept_lines_are_the_bytes_they_were(tmp_path: Path, bench: Path):
    text = '{"prompt" : "x",  "big": 123456789012345678901234567890, "f": 1.0, "n": NaN}'
    source = written(tmp_path / "in.jsonl.gz", text, "", text)
    assert command(source, "--against", bench, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out/kept.jsonl").read_text() == f"{text}\n{text}\n"


def test_malformed_rows_are_rejected_with_their_line(tmp_path: Path, bench: Path, capsys):
    rows = ['{"prompt": "torn', '{"prompt": "fine"}', "[1]", '{"prompt": null}', '{"other": 1}']
    source = written(tmp_path / "in.jsonl", *rows, "{}")
    assert command(source, "--against", bench, "--out", tmp_path / "out") == 0
    assert lines(tmp_path / "out/kept.jsonl") == [{"prompt": "fine"}]
    reasons = [r["reason"] for r in lines(tmp_path / "out/rejected.jsonl")]
    assert [r.split(":")[0] for r in reasons] == [f"line {n}" for n in (1, 3, 4, 5, 6)]
    assert reasons[2] == "line 4: field 'prompt' is NoneType, not text"
    assert lines(tmp_path / "out/rejected.jsonl")[0]["line"] == rows[0]
    assert "5 of the rejected are malformed" in capsys.readouterr().out


def test_parquet_keeps_schema_and_columns(tmp_path: Path, bench: Path):
    table = pa.table(
        {
            "question": ["What is 2+2?", ITEM, None],
            "reason": pa.array([1, 2, 3], pa.int16()),
            "nested": [[{"a": 1}], [], None],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    out = tmp_path / "out"
    arguments = ("--against", bench, "--text-field", "question", "--out", out)
    assert command(tmp_path / "in.parquet", *arguments) == 0
    assert pq.read_table(out / "kept.parquet").equals(table.slice(0, 1))
    rejected = pq.read_table(out / "rejected.parquet")
    assert rejected.select(table.column_names).equals(table.slice(1, 2))
    shared, malformed = rejected.column("decontaminate_reason").to_pylist()
    assert "9-gram of bench item 1" in shared
    assert malformed == "row 3: field 'question' is NoneType, not text"


def test_min_coverage_and_n_and_normalisation_reach_the_rule(tmp_path: Path, bench: Path):
    source = written(tmp_path / "in.jsonl", {"prompt": "how many ways are THERE, to place"})
    out = tmp_path / "out"

    def kept(*options: object) -> int:
        assert command(source, "--against", bench, "--out", out, *options) == 0
        return len(lines(out / "kept.jsonl"))

    assert kept() == 1
    assert kept("--n", 6) == 0
    assert kept("--n", 6, "--normalize", "whitespace") == 1
    assert kept("--n", 6, "--min-coverage", 0.5) == 1
    assert len(list(read_table(out / "hits.parquet", Hit))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "0"], "--n 0: Input should be greater than or equal to 1"),
        (["--min-coverage", "2"], "--min-coverage 2.0: Input should be less than"),
        (["--text-field", "body"], "has no field 'body'; it has: prompt, id"),
    ],
)
def test_wrong_usage_is_one_line_exit_2_and_writes_nothing(
    tmp_path: Path, bench: Path, capsys, options: list[str], message: str
):
    source = written(tmp_path / "in.jsonl", {"prompt": "x", "id": 1})
    assert command(source, "--against", bench, "--out", tmp_path / "out", *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_missing_and_empty_benchmarks_are_wrong_usage(tmp_path: Path, capsys):
    source = written(tmp_path / "in.jsonl", {"prompt": "x"})
    empty, odd = written(tmp_path / "empty.jsonl"), written(tmp_path / "odd.jsonl", {"a": "b"})
    for against, message in [
        (tmp_path / "none.jsonl", "no file"),
        (empty, "nothing would be protected"),
        (odd, "has no text in prompt, problem, question, text, question_content; it has: a"),
        (tmp_path, "no file"),
    ]:
        assert command(source, "--against", against, "--out", tmp_path / "out") == 2
        assert message in capsys.readouterr().err


def test_a_damaged_file_fails_and_leaves_earlier_results(tmp_path: Path, bench: Path, capsys):
    out = tmp_path / "out"
    good = written(tmp_path / "good.jsonl", {"prompt": "fine"})
    assert command(good, "--against", bench, "--out", out) == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    torn = written(tmp_path / "torn.jsonl.gz", *[{"prompt": str(i) * 99} for i in range(999)])
    torn.write_bytes(torn.read_bytes()[:-50])
    assert command(torn, "--against", bench, "--out", out) == 1
    assert "torn.jsonl.gz is damaged after line" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_results_replace_those_of_an_earlier_run_on_another_format(tmp_path: Path, bench: Path):
    out = tmp_path / "out"
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "in.parquet")
    assert command(tmp_path / "in.parquet", "--against", bench, "--out", out) == 0
    source = written(tmp_path / "in.jsonl", {"prompt": "x"})
    assert command(source, "--against", bench, "--out", out) == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "decontamination.html",
        "hits.parquet",
        "kept.jsonl",
        "rejected.jsonl",
    ]
    assert command(out / "kept.jsonl", "--against", bench, "--out", out) == 2


def test_text_that_utf8_cannot_hold_is_no_crash(tmp_path: Path, bench: Path):
    source = written(tmp_path / "in.jsonl", '{"prompt": "\\ud83d ' + ITEM + '"}')
    assert command(source, "--against", bench, "--out", tmp_path / "out") == 0
    assert len(list(read_table(tmp_path / "out/hits.parquet", Hit))) == 1


def test_a_benchmark_is_named_by_its_file_or_its_folder(tmp_path: Path):
    paths = [tmp_path / p for p in ("aime24/test.jsonl.gz", "b/lcb.jsonl", "x/q.json", "y/q.json")]
    assert benchmark_names(paths) == ["aime24", "lcb", "x/q", "y/q"]
