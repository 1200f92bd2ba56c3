"""`klear decontaminate`: every row is kept as it was or rejected with a reason, never lost; without
`--out` a table of sources by benchmarks, the strict reading beside the leaks."""

import gzip
import json
import resource
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klear.eval.records.tables import read_table
from klear.flows.cli.main import main
from klear.tasks.data.contamination import LONGEST_TEXT, Hit

ITEM = "How many ways are there to place nine rooks on a torus board safely?"
SUMS = "Find the sum of all positive integers n such that n divides one thousand and one."


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    return written(tmp_path / "bench.jsonl", {"problem": ITEM})


def written(path: Path, *rows: object) -> Path:
    """A JSONL file of rows: bytes as they are, others as JSON."""
    path.parent.mkdir(exist_ok=True, parents=True)
    text = b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def parquet(tmp_path: Path, column: pa.Array, **others: pa.Array) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"prompt": column, **others}), path)
    return path


def command(source: Path, bench: Path, *options: object) -> int:
    out = source.parent / "out"
    arguments = ["decontaminate", source, "--out", out, "--against", bench, *options]
    return main([str(a) for a in arguments])


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_keep_every_field_and_the_rejected_ones_say_why(tmp_path: Path, bench: Path):
    clean = b'{"id": "a", "prompt" : "\xc3\xa9", "x": {"big": 123456789012345678901, "n": -0.0}}'
    lone = b'{"prompt": "\\ud83d", "f": 1.0}'
    leaked = {"id": "b", "prompt": f"Solve: {ITEM}", "extra": 3}
    assert command(written(tmp_path / "in.jsonl.gz", clean, b"", lone, leaked), bench) == 0
    kept = map(repr, lines(tmp_path / "out/kept.jsonl"))
    assert list(kept) == [repr(json.loads(line)) for line in (clean, lone)]
    (rejected,) = lines(tmp_path / "out/rejected.jsonl")
    assert rejected.pop("reason").endswith("is a 9-gram of bench item 1 (coverage 1.00)")
    assert rejected == leaked
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert (hit.row_id, hit.benchmark, hit.item_id, hit.coverage) == ("b", "bench", "1", 1.0)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "decontamination.html", "hits.parquet", "kept.jsonl", "rejected.jsonl",
    }  # fmt: skip


def test_lines_that_are_no_utf8_no_json_or_no_text_are_counted_rejects(tmp_path, bench, capsys):
    bad = [b'{"prompt": "torn', b'{"prompt": "caf\xe9"}', b"\x00\x01\x02", b'{"prompt": NaN}',
           b'{"prompt": null}', b'{"prompt": ["a"]}', b"17", b"[" * 100_000, b"{ }"]  # fmt: skip
    surrogate = b'{"prompt": "\\ud83d ' + ITEM.encode() + b'"}'
    source = written(tmp_path / "in.jsonl", {"prompt": "fine"}, *bad, surrogate, b"  ")
    assert command(source, bench) == 0
    assert lines(tmp_path / "out/kept.jsonl") == [{"prompt": "fine"}]
    rejected = lines(tmp_path / "out/rejected.jsonl")
    reasons = [row["reason"] for row in rejected]
    assert [r.split(":")[0] for r in reasons[:-1]] == [f"row {n}" for n in range(2, 11)]
    assert rejected[0]["line"] == bad[0].decode()
    assert "row 6: field prompt: empty" in reasons
    assert "9-gram of bench item 1" in reasons[-1]
    assert "9 of the rejected are malformed" in capsys.readouterr().out


def test_rows_of_a_parquet_file_keep_every_column_as_json(tmp_path: Path, bench: Path):
    day, seen = date(2025, 2, 28), {"a": [{"b": None}]}
    rows = [
        {"question": text, "reason": 1, "decontaminate_reason": "", "day": day, "seen": seen,
         "raw": b"\x00\xff"}
        for text in ("What is 2+2?", ITEM, None)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    assert command(tmp_path / "in.parquet", bench, "--text-field", "question") == 0
    as_json = [{**row, "day": "2025-02-28", "raw": "00ff"} for row in rows]
    assert lines(tmp_path / "out/kept.jsonl") == as_json[:1]
    rejected = lines(tmp_path / "out/rejected.jsonl")
    shared, malformed = (r.pop("decontaminate_decontaminate_reason") for r in rejected)
    assert "9-gram of bench item 1" in shared
    assert malformed == "row 3: field question: missing"
    assert rejected == as_json[1:]


def test_parquet_text_that_is_no_utf8_is_a_counted_reject(tmp_path: Path, bench: Path, capsys):
    bytes_ = pa.array([b"fine", b"caf\xe9", None, ITEM.encode(), b"\xed\xa0\x80"], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 5, bytes_.buffers())
    assert command(parquet(tmp_path, column, id=column), bench) == 0
    assert lines(tmp_path / "out/kept.jsonl") == [{"prompt": "fine", "id": "fine"}]
    reasons = [row["reason"] for row in lines(tmp_path / "out/rejected.jsonl")]
    for row, reason in ((2, reasons[0]), (5, reasons[3])):
        assert reason.startswith(f"row {row}: cannot be read: 'utf-8' codec")
    assert "3 of the rejected are malformed" in capsys.readouterr().out


def test_ids_of_any_kind_are_read_and_may_repeat(tmp_path: Path, bench: Path):
    for ids in (pa.array([7]), pa.array([[1]]), pa.array([float("nan")])):
        assert command(parquet(tmp_path, pa.array([ITEM]), id=ids), bench) == 0
        assert len(list(read_table(tmp_path / "out/hits.parquet", Hit))) == 1
    rows = [{"id": 1, "prompt": "a"}, {"id": "1", "prompt": ITEM}, {"prompt": ITEM}]
    assert command(written(tmp_path / "in.jsonl", *rows), bench) == 0
    hits = list(read_table(tmp_path / "out/hits.parquet", Hit))
    assert [(h.row_number, h.row_id) for h in hits] == [(2, "1"), (3, "3")]


def test_a_benchmark_is_named_by_its_file_or_where_two_are_called_so_by_its_path(tmp_path: Path):
    both = [str(written(tmp_path / f"{name}/test.jsonl", {"text": ITEM})) for name in "ab"]
    both.append(str(written(tmp_path / "lcb.jsonl", {"text": ITEM})))
    source = written(tmp_path / "in.jsonl", {"prompt": ITEM})
    assert command(source, Path(both[0]), *both[1:]) == 0
    hits = read_table(tmp_path / "out/hits.parquet", Hit)
    assert sorted(h.benchmark for h in hits) == sorted([*both[:2], "lcb"])


def test_min_coverage_and_n_and_normalisation_reach_the_rule(tmp_path: Path, bench: Path):
    source = written(tmp_path / "in.jsonl", {"prompt": "how many ways are THERE, to place"})

    def kept(*options: object) -> int:
        assert command(source, bench, *options) == 0
        return len(lines(tmp_path / "out/kept.jsonl"))

    assert kept() == 1
    assert kept("--n", 6) == 0
    assert kept("--n", 6, "--normalize", "whitespace") == 1
    assert kept("--n", 6, "--min-coverage", 0.5) == 1
    assert len(list(read_table(tmp_path / "out/hits.parquet", Hit))) == 1


@pytest.mark.parametrize(("options", "message"), [
    (["--n", "0"], "n: 0 should be greater than or equal to 1"),
    (["--normalize", "words"], "'words' should be 'alnum' or 'whitespace'"),
    (["--text-field", "body"], "has a text in 'body'; name another field by --text-field"),
])  # fmt: skip
def test_wrong_usage_is_one_line_exit_2_and_writes_nothing(
    tmp_path: Path, bench: Path, capsys, options: list[str], message: str
):
    assert command(written(tmp_path / "in.jsonl", {"prompt": "x", "id": 1}), bench, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("content", "code", "message"), [
    (None, 2, "does not exist"),
    (b"", 2, "nothing would be protected"),
    (b'{"a": "b"}', 2, "no field holds a problem; its fields: a; looked for: problem, question"),
    (b'{"problem": "caf\xe9"}', 1, "bench.jsonl line 1"),
])  # fmt: skip
def test_a_benchmark_that_protects_nothing_is_refused(tmp_path, capsys, content, code, message):
    bench = tmp_path / "bench.jsonl"
    if content is not None:
        bench.write_bytes(content)
    assert command(written(tmp_path / "in.jsonl", {"prompt": "x"}), bench) == code
    assert message in capsys.readouterr().err


def test_a_damaged_file_fails_by_its_name_and_leaves_earlier_results(tmp_path, bench, capsys):
    assert command(written(tmp_path / "good.jsonl", {"prompt": "fine"}), bench) == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    source = parquet(tmp_path, pa.array([f"row {i} {'é' * (i % 90)}" for i in range(20_000)]))
    data = bytearray(source.read_bytes())  # torn in the middle
    data[len(data) // 3 : len(data) // 3 + 4_000] = b"\xff" * 4_000
    source.write_bytes(data)
    assert command(source, bench) == 1
    assert "in.parquet is damaged after row" in capsys.readouterr().err
    torn = written(tmp_path / "torn.jsonl.gz", *[{"prompt": str(i) * 99} for i in range(999)])
    torn.write_bytes(torn.read_bytes()[:-50])
    assert command(torn, bench) == 1
    assert "torn.jsonl.gz is damaged after row" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_results_do_not_replace_what_they_are_made_of(tmp_path: Path, bench: Path):
    out = tmp_path / "out"
    assert command(written(tmp_path / "in.jsonl", {"prompt": "x"}), bench) == 0
    assert main(["decontaminate", f"{out}/kept.jsonl", "--against", str(bench), "--out", str(out)])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_row_of_50_megabytes_passes_in_bounded_memory(tmp_path: Path, bench: Path, suffix: str):
    huge = "x y z " * (50_000_000 // 6) + ITEM
    if suffix == "jsonl":
        source = written(tmp_path / "in.jsonl", *({"prompt": p} for p in ("a", huge, "b")))
    else:
        source = parquet(tmp_path, pa.array(["a", huge, "b"]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert command(source, bench) == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 << 10  # KiB
    (hit,) = read_table(tmp_path / "out/hits.parquet", Hit)
    assert hit.ngram == "how many ways are there to place nine rooks"
    assert len(hit.row) == LONGEST_TEXT


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Here sources are counted, which needs a store."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(field: str, *values: str) -> list[dict[str, str]]:
    return [{field: value} for value in values]


def count(*words: object) -> int:
    return main(["decontaminate", *map(str, words)])


def test_each_source_has_a_row_and_each_benchmark_a_column(place, capsys):
    """One row is the item itself; one shares its first nine words alone, of 14."""
    nine = " ".join(SUMS.split()[:9])
    written(place / "mine.jsonl", *texts("question", ITEM, f"{nine} eleven?", "What is 2 + 3?"))
    written(place / "clean.jsonl", *texts("prompt", "What is the name of the seventh day?"))
    one = written(place / "rooks.jsonl", *texts("problem", ITEM))
    written(place / "sums.jsonl", *texts("problem", SUMS, "Short one."))
    assert count("mine.jsonl", "other=clean.jsonl", "--against", one, "sums.jsonl") == 0
    _, titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == ["rows", "rooks", "(1)", "sums", "(2)"]
    assert [row.split() for row in rows[:2]] == [
        ["mine", "3", "1", "/", "1", "1", "/", "0"],
        ["other", "1", "–", "–"],
    ]
    assert Path(rows[2].removeprefix("page: ")).exists()


def test_files_of_an_entry_of_the_catalogue_have_its_fields_and_need_no_answer(place, capsys):
    """AceReason's instruction after the problem is no part of it; the same again costs nothing."""
    instruction = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    rows = [{"input": ITEM + instruction, "category": "math"}, {"input": 7, "category": "math"}]
    written(place / "rows.jsonl", *rows)
    written(place / "bench.jsonl", *texts("problem", f"{ITEM} Why?", instruction.strip()))
    for computed in (True, False):
        assert count("acereason_sft_math=rows.jsonl", "--against", "bench.jsonl") == 0
        output = capsys.readouterr()
        assert ("✓ collect" in output.err) == computed
        assert "1 / 1" in output.out
        assert "rows that cannot be read: 1;" in output.out


def test_a_near_miss_has_its_own_column_and_stands_beside_its_item_on_a_page(place, capsys):
    """Other numbers, and every ninth word another: no 9-gram is shared. The item itself is a leak,
    which is counted as such alone."""
    item = "A farmer has 17 cows and buys 25 more, then sells 9 of them. How many cows are left?"
    other = "A farmer has 31 cows and buys 46 more, then sells 8 of them. How many cows are left?"
    written(place / "mine.jsonl", *texts("question", item, other, ITEM))
    written(place / "cows.jsonl", *texts("problem", item))
    assert count("mine.jsonl", "--against", "cows.jsonl", "--near", "0.9") == 0
    _, legend, titles, row, _, page = capsys.readouterr().out.splitlines()
    assert legend == "near: others whose cosine with an item is 0.9 or more (hashing)"
    assert titles.split() == ["rows", "cows", "(1)", "near"]
    assert row.split() == ["mine", "3", "1", "/", "1", "1"]
    shown = Path(page.removeprefix("near: ")).read_text()
    pair = shown.partition('class="pair"')[2].partition("</details>")[0]
    assert other in pair
    assert item in pair


@pytest.mark.parametrize(("words", "message"), [
    (["deepscalr"], "deepscalr: no such source in the catalogue; did you mean deepscaler?"),
    (["aime24=none.jsonl"], "aime24: no file none.jsonl below"),
    (["odd.jsonl"], "no field holds a problem; its fields: text_of_it"),
    ([], "name at least one source"),
    (["bench.jsonl", "--embed", "bge"], "add --near 0.9"),
    (["bench.jsonl", "--near", "0.9", "--embed-url", "http://h/v1"], "--embed-url needs --embed"),
    (["bench.jsonl", "--near", "1.5"], "cosine"),
    (["bench.jsonl", "--near", "1", "--embed", "e", "--embed-url", "http://a:b@c/v1"],
     "OPENAI_API_KEY"),
])  # fmt: skip
def test_what_cannot_be_read_or_compared_is_named(place: Path, bench, capsys, words, message):
    written(place / "odd.jsonl", {"text_of_it": "?"})
    assert count(*words, "--against", "bench.jsonl") == 2
    assert message in capsys.readouterr().err
