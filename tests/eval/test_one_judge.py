"""One judge, three customers: the filter, the RL reward and the benchmark call the same object."""

import ast
from pathlib import Path

import pytest

import eval.judge

ROOT = Path(__file__).resolve().parents[2]
CUSTOMERS = {
    "pass@16 filter": "tasks/judge.py",
    "RL reward": "training/rl.py",
    "benchmark": "tasks/benchmarking.py",
}


@pytest.mark.parametrize("path", CUSTOMERS.values(), ids=CUSTOMERS)
def test_every_customer_imports_the_judge_of_eval_and_no_other(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    imported = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported["Judge"] == eval.judge.Judge.__module__ == "eval.judge"


def test_verdicts_are_given_nowhere_else() -> None:
    """Nothing outside of eval imports the parts a verdict is made of."""
    parts = ("eval.verify_math", "eval.verify_code", "eval.verify_countdown", "math_verify")
    offenders = [
        str(file.relative_to(ROOT))
        for folder in ("tasks", "training", "flows")
        for file in (ROOT / folder).rglob("*.py")
        if any(f"from {part} import" in file.read_text() for part in parts)
    ]
    assert offenders == []
