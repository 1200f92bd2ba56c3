"""Table 1 as data, against the text of the paper and the protocols of the settings."""

import re
from pathlib import Path

import pytest

from configs.evaluate_stage import PAPER_PROTOCOLS
from eval.paper_table import COLUMNS, ROWS

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "paper.txt"


def paper_rows() -> dict[str, tuple[float, ...]]:
    if not PAPER.exists():
        pytest.skip("needs ../shared/paper/paper.txt")
    text = PAPER.read_text()
    table = text[text.index("AIME2024 avg@64") : text.index("Table 1:")]
    found = re.findall(r"^\s*(\S.*?)((?: \d\d\.\d){5})$", table, flags=re.M)
    return {name: tuple(map(float, scores.split())) for name, scores in found}


def test_every_number_of_table_1_is_the_papers():
    ours = {r.model.replace("Klear-Reasoner-8B, 64K budget", "w/ 64K Inference Budget"): r.scores
            for r in ROWS}  # fmt: skip
    assert ours == paper_rows()


def test_the_columns_are_the_paper_protocols_in_order_with_their_k():
    assert [(c.name, c.k) for c in COLUMNS] == [(p.name, p.k) for p in PAPER_PROTOCOLS]


def test_only_other_peoples_models_are_marked_as_evaluated_by_the_authors():
    assert all(not any(r.by_the_authors) for r in ROWS if r.ours)
    assert all(len(r.by_the_authors) == len(r.scores) == len(COLUMNS) for r in ROWS)
