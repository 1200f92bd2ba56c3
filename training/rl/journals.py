"""What an RL stage writes down beside its curves: answers to read, and off-policy counts.

A resumed run first drops what came after its checkpoint. Some answers of every step are shown to
people, and in the end all of them lie in one table.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from transformers import PreTrainedTokenizerBase

from configs.files import replace_text
from eval.records import Record, Score, Verdict
from eval.tables import write_table
from training.layout import OFF_POLICY, ROLLOUT_JOURNAL, SHOWN, StepLines
from training.render import response_texts
from training.rl.off_policy_counts import OffPolicy, write_off_policy
from training.rl.statistics import RolloutRecord


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


class RolloutJournal:
    """Keeps `keep` answers of every rollout of rank 0, always those at the same places.

    `scores()`: those of the latest rollout, in the order of its answers.
    """

    def __init__(
        self,
        out: Path,
        tokenizer: PreTrainedTokenizerBase,
        scores: Callable[[], Sequence[Score]],
        *,
        keep: int,
        after_step: int = 0,
    ) -> None:
        self.tokenizer, self.scores, self.keep = tokenizer, scores, keep
        self.shown = out / SHOWN / "rollouts"
        self.rows = StepLines(out / ROLLOUT_JOURNAL, after_step=after_step)
        self.off_policy = StepLines(out / OFF_POLICY, after_step=after_step)

    def add(self, record: RolloutRecord) -> None:
        """One rollout; the answers kept are shown as a table of columns and data, too."""
        step, rollout, size = record.step + 1, record.rollout, len(record.inputs)
        draw = random.Random(f"audit:{record.step}")
        chosen = sorted(draw.sample(range(size), min(self.keep, size)))
        answers = [rollout.tokens[i][rollout.prompt_length[i] :].tolist() for i in chosen]
        rows = []
        for i, text in zip(chosen, response_texts(self.tokenizer, answers), strict=True):
            row = RolloutRow(
                step=step,
                text=text,
                advantage=float(rollout.advantage[i]),
                tokens=rollout.answer_length(i),
                trained=bool(rollout.keep[i]),
                **self.scores()[i].model_dump(exclude={"answer", "seconds"}),
            )
            rows.append(row.model_dump())
            self.rows.write(rows[-1])
        names = [n for n in RolloutRow.model_fields if n != "step"]
        table = {"columns": names, "data": [[row[n] for n in names] for row in rows]}
        replace_text(self.shown / f"step_{step:05d}.json", json.dumps(table))

    def count(self, step: int, tables: Sequence[OffPolicy]) -> None:
        """The off-policy counts of the updates of one rollout step."""
        write_off_policy(self.off_policy, step, tables)

    def write(self, path: Path) -> int:
        """All kept rows as parquet, in the order of the steps."""
        with self.rows.path.open() as file:
            return write_table(path, RolloutRow, map(RolloutRow.model_validate_json, file))
