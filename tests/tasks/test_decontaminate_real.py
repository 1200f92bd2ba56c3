"""Recall and precision on real problems, with true pairs found without any n-gram."""

import re
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from shared_data import shared_rows

from klear.tasks.data.ngrams import Item, NgramIndex
from klear.tasks.data.words import Normalisation
from tests.bench.open_r1_peer import grams


def index_of(items: list[str], normalise: Normalisation = "alnum") -> NgramIndex:
    return NgramIndex([Item("bench", str(i), t) for i, t in enumerate(items)], 9, normalise)


def found_pairs(
    items: list[str], rows: list[str], normalise: Normalisation, coverage: float = 0.0
) -> set[tuple[int, int]]:
    """(item, row) that share a 9-gram or a whole short item, at this coverage or more."""
    found = index_of(items, normalise).search(pa.array(rows, pa.large_string()))
    pairs = zip(found.items.tolist(), found.rows.tolist(), found.coverage.tolist(), strict=True)
    return {(item, row) for item, row, share in pairs if share >= coverage}


def character_grams(text: str) -> set[str]:
    letters = re.sub(r"[^a-z0-9]", "", text.lower())
    return {letters[i : i + 4] for i in range(len(letters) - 3)}


def answer(text: str) -> str:
    boxed = re.search(r"\\boxed\{(.*)\}", text, re.DOTALL)
    return re.sub(r"[\s$]", "", boxed[1] if boxed else text).lstrip("0")


def true_pairs(items: list[tuple[str, str]], rows: list[tuple[str, str]]) -> set[tuple[int, int]]:
    """Same problem: nearly the same characters, or the same answer and many of them."""
    grams = [character_grams(text) for text, _ in rows]
    pairs = set()
    for i, (text, value) in enumerate(items):
        mine = character_grams(text)
        alike, row = max((len(mine & g) / len(mine | g), j) for j, g in enumerate(grams))
        same_answer = answer(value) == answer(rows[row][1])
        if alike >= 0.9 or (alike >= 0.4 and same_answer):
            pairs.add((i, row))
    return pairs


OTHER_TYPESETTING = {
    "aime24": (
        ("aime24/test", "problem", "expected_answer"),
        ("aimo_validation_aime/train", "question", "answer"),
        30,
    ),
    "hmmt_feb_2025": (
        ("hmmt_feb_2025/test", "problem", "solution"),
        ("comp_math_24_25/test", "problem", "expected_answer"),
        29,  # problem 24 of 30 is not in that collection
    ),
}


@pytest.mark.parametrize("benchmark", OTHER_TYPESETTING)
def test_alnum_finds_every_problem_in_other_typesetting(benchmark: str):
    (name, text, gold), (other, other_text, other_gold), expected = OTHER_TYPESETTING[benchmark]
    items = [(row[text], row[gold]) for row in shared_rows(name)]
    rows = [(row[other_text], row[other_gold]) for row in shared_rows(other)]
    true = true_pairs(items, rows)
    assert len(true) == expected
    item_texts, row_texts = [t for t, _ in items], [t for t, _ in rows]
    assert true <= found_pairs(item_texts, row_texts, "alnum", 0.25)
    assert not true <= found_pairs(item_texts, row_texts, "whitespace")


def test_whitespace_gives_the_flags_and_the_coverage_of_the_published_rule():
    items = [row["problem"] for row in shared_rows("math500/test")]
    rows = [row["problem"] for row in shared_rows("deepscaler/train")[::4]]
    owners = defaultdict(set)
    for number, item in enumerate(items):
        for gram in grams(item):
            owners[gram].add(number)
    sizes = [len(set(grams(item))) for item in items]
    published = {}
    for number, row in enumerate(rows):
        shared = Counter(item for gram in set(grams(row)) for item in owners.get(gram, ()))
        published |= {(number, item): count / sizes[item] for item, count in shared.items()}
    index = index_of(items, "whitespace")
    found = index.search(pa.array(rows, pa.large_string()))
    columns = (found.rows, found.items, found.coverage, found.entries)
    ours = {
        (row, item): coverage
        for row, item, coverage, entry in zip(*(c.tolist() for c in columns), strict=True)
        if not index.whole[entry]
    }
    assert ours == published
    assert len({row for row, _ in ours}) > 100
