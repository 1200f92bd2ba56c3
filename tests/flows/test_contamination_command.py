"""`klear decontaminate` that counts: sources by benchmarks, the strict reading beside the leaks."""

from pathlib import Path

import pytest

from klear.flows.cli.main import main
from tests.tasks.manifests_by_hand import jsonl

ROOKS = "How many ways are there to place nine rooks on a torus board safely?"
SUMS = "Find the sum of all positive integers n such that n divides one thousand and one."


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, field: str, *texts: str) -> Path:
    return jsonl(path, *({field: text} for text in texts))


def command(*words: object) -> int:
    return main(["decontaminate", *map(str, words)])


def test_each_source_has_a_row_and_each_benchmark_a_column(place: Path, capsys):
    """One row is the item itself; one shares its first nine words alone, of 14."""
    nine = " ".join(SUMS.split()[:9])
    written(place / "mine.jsonl", "question", ROOKS, f"{nine} eleven?", "What is 2 + 3?")
    written(place / "clean.jsonl", "prompt", "What is the name of the seventh day?")
    one = written(place / "rooks.jsonl", "problem", ROOKS)
    written(place / "sums.jsonl", "problem", SUMS, "Short one.")
    assert command("mine.jsonl", "other=clean.jsonl", "--against", one, "sums.jsonl") == 0
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
    rows = [{"input": ROOKS + instruction, "category": "math"}, {"input": 7, "category": "math"}]
    jsonl(place / "rows.jsonl", *rows)
    written(place / "bench.jsonl", "problem", f"{ROOKS} Why?", instruction.strip())
    for computed in (True, False):
        assert command("acereason_sft_math=rows.jsonl", "--against", "bench.jsonl") == 0
        output = capsys.readouterr()
        assert ("✓ collect" in output.err) == computed
        assert "1 / 1" in output.out
        assert "rows that cannot be read: 1;" in output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["deepscalr"], "deepscalr: no such source in the catalogue; did you mean deepscaler?"),
        (["aime24=none.jsonl"], "aime24: no file none.jsonl below"),
        (["odd.jsonl"], "no field holds a problem; its fields: text_of_it"),
        ([], "name at least one source"),
    ],
)
def test_what_cannot_be_read_is_named(place: Path, capsys, words, message):
    written(place / "odd.jsonl", "text_of_it", "?")
    assert command(*words, "--against", written(place / "bench.jsonl", "problem", ROOKS)) == 2
    assert message in capsys.readouterr().err


def test_a_near_miss_has_its_own_column_and_stands_beside_its_item_on_a_page(place, capsys):
    """Other numbers, and every ninth word another: no 9-gram is shared. The item itself is a leak,
    which is counted as such alone."""
    item = "A farmer has 17 cows and buys 25 more, then sells 9 of them. How many cows are left?"
    other = "A farmer has 31 cows and buys 46 more, then sells 8 of them. How many cows are left?"
    written(place / "mine.jsonl", "question", item, other, ROOKS)
    written(place / "cows.jsonl", "problem", item)
    assert command("mine.jsonl", "--against", "cows.jsonl", "--near", "0.9") == 0
    _, legend, titles, row, _, page = capsys.readouterr().out.splitlines()
    assert legend == "near: others whose cosine with an item is 0.9 or more (hashing)"
    assert titles.split() == ["rows", "cows", "(1)", "near"]
    assert row.split() == ["mine", "3", "1", "/", "1", "1"]
    shown = Path(page.removeprefix("near: ")).read_text()
    pair = shown.partition('class="pair"')[2].partition("</details>")[0]
    assert other in pair
    assert item in pair


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--embed", "bge"], "add --near 0.9"),
        (["--near", "0.9", "--embed-url", "http://127.0.0.1:1/v1"], "--embed-url needs --embed"),
        (["--near", "1.5"], "cosine"),
        (["--near", "1", "--embed", "e", "--embed-url", "http://a:b@c/v1"], "OPENAI_API_KEY"),
    ],
)
def test_an_encoder_that_cannot_be_asked_is_wrong_usage(place: Path, capsys, words, message):
    bench = written(place / "bench.jsonl", "problem", ROOKS)
    assert command("bench.jsonl", "--against", bench, *words) == 2
    assert message in capsys.readouterr().err
