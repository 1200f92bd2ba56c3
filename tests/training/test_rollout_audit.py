"""The journal of rollouts: what a model wrote comes back whole, whatever it wrote."""

from types import SimpleNamespace
from typing import Any

import pytest

from eval.tables import read_table
from training.rollout_audit import RolloutAudit, RolloutRow

SEPARATORS = "a\u2028b\x85c\u2029d\x0be\x1cf\r\ng"  # str.splitlines cuts at every one of them


def row(step: int, text: str = SEPARATORS) -> RolloutRow:
    return RolloutRow(
        step=step, problem_id="p", index=0, text=text, reward=None, correct=None, pass_rate=None,
        verdict="IE", reason=text, advantage=0.5, tokens=3, trained=False,
    )  # fmt: skip


def audit(out, after_step: int) -> RolloutAudit:
    nothing: Any = SimpleNamespace()  # neither tokenizer nor reward is asked on resuming
    return RolloutAudit(out, nothing, nothing, keep=1, after_step=after_step)


def journalled(out, *rows: RolloutRow, torn: str = "") -> None:
    path = out / ".resume" / "rollouts.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(("".join(r.model_dump_json() + "\n" for r in rows) + torn).encode())


def test_a_resumed_audit_keeps_answers_with_any_line_separator(tmp_path):
    journalled(tmp_path, row(1), row(2), row(3))
    resumed = audit(tmp_path, after_step=2)
    assert resumed.write(tmp_path / "rollouts.parquet") == 2
    assert list(read_table(tmp_path / "rollouts.parquet", RolloutRow)) == [row(1), row(2)]


@pytest.mark.parametrize("cut", [1, 20, len(row(2).model_dump_json())])
def test_a_line_that_a_kill_cut_is_no_row(tmp_path, cut):
    journalled(tmp_path, row(1), torn=row(2).model_dump_json()[:cut])
    assert audit(tmp_path, after_step=2).write(tmp_path / "rollouts.parquet") == 1
