"""What an RL stage writes down beside its curves: answers to read, and histograms.

A resumed run first drops what came after its checkpoint. `histograms.jsonl` has a line of counts
for every step, `histogram_ranges.json` the ends between which they were counted. Some answers of
every step are shown to people, and in the end all of them lie in one table.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from configs.files import replace_text
from eval.records import Record, Score, Verdict
from eval.tables import write_table
from training.layout import HISTOGRAM_RANGES, HISTOGRAMS, ROLLOUT_JOURNAL, SHOWN, StepLines
from training.render import response_texts
from training.rl.statistics import RolloutRecord

BINS, REWARDS = 40, (-2.0, 2.0)  # of the histograms


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
    """Keeps `keep` answers of every rollout of rank 0, always those at the same places, and
    histograms of all. `scores()`: those of the latest rollout, in the order of its answers."""

    def __init__(
        self,
        out: Path,
        tokenizer: PreTrainedTokenizerBase,
        scores: Callable[[], Sequence[Score]],
        *,
        keep: int,
        longest: int,
        after_step: int = 0,
    ) -> None:
        self.tokenizer, self.scores, self.keep = tokenizer, scores, keep
        self.shown = out / SHOWN / "rollouts"
        self.rows = StepLines(out / ROLLOUT_JOURNAL, after_step=after_step)
        self.histograms = StepLines(out / HISTOGRAMS, after_step=after_step)
        self.ranges = {"answer_tokens": (0.0, float(longest)), "reward": REWARDS}
        (out / HISTOGRAM_RANGES).write_text(json.dumps(self.ranges))

    def add(self, record: RolloutRecord) -> None:
        """One rollout; the answers kept are shown as a table of columns and data, too."""
        step, rollout, size = record.step + 1, record.rollout, len(record.inputs)
        values = {"answer_tokens": record.lengths, "reward": record.rewards}
        counts = {name: _histogram(values[name], *self.ranges[name]) for name in self.ranges}
        self.histograms.write({"step": step, **counts})
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

    def write(self, path: Path) -> int:
        """All kept rows as parquet, in the order of the steps."""
        with self.rows.path.open() as file:
            return write_table(path, RolloutRow, map(RolloutRow.model_validate_json, file))


def _histogram(values: Tensor, low: float, high: float) -> list[float]:
    """Counts in `BINS` bins; what lies outside is counted in the outermost bin."""
    known = values[values.isfinite()].float().clamp(low, high).cpu()
    return torch.histc(known, BINS, low, high).tolist()
