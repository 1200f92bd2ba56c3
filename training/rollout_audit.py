"""A slice of every rollout, kept to be read: what the model wrote and what it was paid."""

import json
import os
from pathlib import Path
from typing import Annotated

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from eval.records import Record, Verdict
from eval.tables import write_table
from training.judge_reward import JudgeReward, audit_rows
from training.render import response_texts
from training.rollout_metrics import RolloutRecord


class RolloutRow(Record):
    """One answer of one rollout step."""

    step: Annotated[int, Field(ge=1)]
    problem_id: str
    index: int
    text: str
    reward: float | None
    correct: bool | None
    pass_rate: float | None
    verdict: Verdict
    reason: str
    advantage: float
    tokens: int
    trained: bool
    """False: the answer was unscored, or its group had equal rewards."""


class RolloutAudit:
    """Journals rows below `out/.resume`, then writes them as one table."""

    def __init__(
        self,
        out: Path,
        tokenizer: PreTrainedTokenizerBase,
        reward: JudgeReward,
        *,
        keep: int,
        after_step: int = 0,
    ) -> None:
        self.tokenizer, self.reward, self.keep = tokenizer, reward, keep
        self.shown = out / "logs" / "shown" / "rollouts"
        self.shown.mkdir(parents=True, exist_ok=True)
        self.journal = out / ".resume" / "rollouts.jsonl"
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self._rows() if row.step <= after_step]
        partial = self.journal.with_suffix(".partial")
        partial.write_text("".join(row.model_dump_json() + "\n" for row in rows))
        os.replace(partial, self.journal)

    def _rows(self) -> list[RolloutRow]:
        if not self.journal.exists():
            return []
        # not splitlines of a text: it cuts at U+2028 and others too, which an answer may hold
        with self.journal.open("rb") as file:
            return [RolloutRow.model_validate_json(x) for x in file if x.endswith(b"\n")]

    def add(self, record: RolloutRecord) -> None:
        """Keep a slice of one rollout."""
        chosen = audit_rows(self.keep, len(record.inputs), record.step)
        rollout = record.tokens
        answers = [rollout.tokens[i][rollout.prompt_length[i] :].tolist() for i in chosen]
        texts = response_texts(self.tokenizer, answers)
        rows = []
        with self.journal.open("a") as file:
            for i, text in zip(chosen, texts, strict=True):
                score = self.reward.scores[i]
                row = RolloutRow(
                    step=record.step + 1,
                    problem_id=score.problem_id,
                    index=score.index,
                    text=text,
                    reward=score.reward,
                    correct=score.correct,
                    pass_rate=score.pass_rate,
                    verdict=score.verdict,
                    reason=score.reason,
                    advantage=float(rollout.advantage[i]),
                    tokens=rollout.answer_length(i),
                    trained=bool(rollout.keep[i]),
                )
                file.write(row.model_dump_json() + "\n")
                rows.append(row)
        self._show(record.step + 1, rows)

    def _show(self, step: int, rows: list[RolloutRow]) -> None:
        """The step's rows as a table that a tracker can display (columns and data)."""
        names = [n for n in RolloutRow.model_fields if n != "step"]
        data = [[getattr(row, n) for n in names] for row in rows]
        path = self.shown / f"step_{step:05d}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"columns": names, "data": data}))
        os.replace(partial, path)

    def write(self, path: Path) -> int:
        """All kept rows as parquet, in the order of the steps."""
        return write_table(path, RolloutRow, self._rows())
