"""What an RL stage writes down beside its curves: answers to read, histograms, off-policy counts.

A resumed run first drops what came after its checkpoint. `logs/histograms.jsonl` has a line of
counts for every step (`histogram_ranges.json` beside it says between which ends they were counted),
`logs/off_policy.jsonl` one for every update with a counted token. Some answers of every step lie in
`logs/shown`, for people, and in the end all of them in one table.
"""

import json
import os
import random
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from eval.records import Record, Verdict
from eval.tables import write_table
from training.launch.progress_files import StepLines
from training.layout import HISTOGRAM_RANGES, HISTOGRAMS, OFF_POLICY, ROLLOUT_JOURNAL, SHOWN
from training.render import response_texts
from training.rl.off_policy_counts import OffPolicy
from training.rl.reward import JudgeReward
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
    """Keeps `keep` answers of every rollout of the first process, always those at the same places,
    and histograms of all."""

    def __init__(
        self,
        out: Path,
        tokenizer: PreTrainedTokenizerBase,
        reward: JudgeReward,
        *,
        keep: int,
        longest: int,
        after_step: int = 0,
    ) -> None:
        self.tokenizer, self.reward, self.keep = tokenizer, reward, keep
        self.shown = out / SHOWN / "rollouts"
        self.shown.mkdir(parents=True, exist_ok=True)
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
        places = random.Random(f"audit:{record.step}").sample(range(size), min(self.keep, size))
        chosen = sorted(places)
        answers = [rollout.tokens[i][rollout.prompt_length[i] :].tolist() for i in chosen]
        rows = []
        for i, text in zip(chosen, response_texts(self.tokenizer, answers), strict=True):
            score = self.reward.scores[i].model_dump(exclude={"answer", "seconds"})
            row = RolloutRow(
                step=step,
                text=text,
                advantage=float(rollout.advantage[i]),
                tokens=rollout.answer_length(i),
                trained=bool(rollout.keep[i]),
                **score,
            )
            rows.append(row.model_dump())
            self.rows.write(rows[-1])
        names = [n for n in RolloutRow.model_fields if n != "step"]
        table = {"columns": names, "data": [[row[n] for n in names] for row in rows]}
        path = self.shown / f"step_{step:05d}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(table))
        os.replace(partial, path)

    def write(self, path: Path) -> int:
        """All kept rows as parquet, in the order of the steps."""
        with self.rows.path.open() as file:
            return write_table(path, RolloutRow, map(RolloutRow.model_validate_json, file))


def _histogram(values: Tensor, low: float, high: float) -> list[float]:
    """Counts in `BINS` bins; what lies outside is counted in the outermost bin."""
    known = values[values.isfinite()].float().clamp(low, high).cpu()
    return torch.histc(known, BINS, low, high).tolist()


class OffPolicyJournal(StepLines):
    """A line of counts for every update of a rollout step."""

    def __init__(self, out: Path, *, after_step: int = 0) -> None:
        super().__init__(out / OFF_POLICY, after_step=after_step)

    def add(self, step: int, tables: list[OffPolicy]) -> None:
        """One rollout step, from 1; an update without a counted token is left out."""
        for update, table in enumerate(tables):
            if table.tokens.any():
                tokens, gradient = (
                    half.flatten().tolist() for half in (table.tokens, table.gradient)
                )
                gradient = [float(f"{g:.6g}") for g in gradient]
                self.write({"step": step, "update": update, "tokens": tokens, "gradient": gradient})
