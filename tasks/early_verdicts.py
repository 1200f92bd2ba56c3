"""Verdicts of early stop, kept beside the samples so that the judge stage need not repeat them.

They lie among what does not count as content: without them, or with another judge or other
problems, the judge stage gives the same scores by judging again.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from configs.base import key_of
from configs.judging import JudgeSettings
from eval.benchmarks import GRADER_VERSION
from eval.records import Score
from tasks.store import LOGS, Artifact
from training.engines.journal import Key

NAME = "early_verdicts.jsonl"


def meaning_of(problems: Artifact, settings: JudgeSettings) -> str:
    """What a verdict depends on beside the answer: grader, settings, and the problems' bytes."""
    text = f"{GRADER_VERSION}/{key_of(settings)}/{problems.digest}"
    return hashlib.sha256(text.encode()).hexdigest()


def keep_verdicts(out: Path, rounds: Iterable[Path], meaning: str) -> None:
    """Put the verdicts of all rounds into one file of `out`; what was unscored is left out, so
    that the judge stage tries it again."""
    path = out / LOGS / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(json.dumps({"meaning": meaning}).encode() + b"\n")
        for journal in rounds:
            with journal.open("rb") as lines:
                file.writelines(x for x in lines if Score.model_validate_json(x).verdict != "IE")
    os.replace(partial, path)


class EarlyVerdicts:
    """The verdicts beside `samples` that mean the same; memory holds where each one lies."""

    def __init__(self, samples: Artifact, meaning: str) -> None:
        self._offsets: dict[Key, int] = {}
        self._path = samples.folder / LOGS / NAME
        if not self._path.exists():
            return
        with self._path.open("rb") as lines:
            first = lines.readline()
            if json.loads(first)["meaning"] != meaning:
                return
            offset = len(first)
            for line in lines:
                row = json.loads(line)
                self._offsets[row["problem_id"], row["index"]] = offset
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, key: Key) -> Score | None:
        """Its verdict; it took no time now."""
        if key not in self._offsets:
            return None
        with self._path.open("rb") as lines:
            lines.seek(self._offsets[key])
            return Score.model_validate_json(lines.readline()).model_copy(update={"seconds": 0.0})
