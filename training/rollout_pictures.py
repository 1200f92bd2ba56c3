"""How lengths, rewards, advantages, log-ratios and entropies are spread, step by step.

Every step appends its counts to `out/logs/histograms.jsonl` (`histogram_ranges.json` beside it
says between which ends they were counted) and draws
`out/logs/shown/histograms.html` anew: one picture a quantity, a column a step, a darker cell where
more answers or tokens are. What lies in `logs/shown` is for people; the tracker shows it.
"""

import json
import os
from html import escape
from pathlib import Path

from training.rollout_metrics import BINS, RANGES

SHOWN = Path("logs") / "shown"
COLUMNS = 200  # steps in a picture; of a longer run every n-th is drawn
CELL = (6, 5)  # width and height in pixels
LABELS = {"answer_tokens": "answer length, tokens", "log_ratio": "log(policy / old policy)"}


class RolloutPictures:
    """Journals the histograms of every rollout step and draws them."""

    def __init__(self, out: Path, longest: int, *, after_step: int = 0) -> None:
        self.longest = longest
        self.journal = out / "logs" / "histograms.jsonl"
        self.page = out / SHOWN / "histograms.html"
        self.page.parent.mkdir(parents=True, exist_ok=True)
        self.steps = self._rows()[:after_step]
        self._replace(self.journal, "".join(json.dumps(row) + "\n" for row in self.steps))
        ends = {name: ends_of(name, longest) for name in RANGES}
        self._replace(self.journal.with_name("histogram_ranges.json"), json.dumps(ends))

    def _rows(self) -> list[dict[str, list[float]]]:
        if not self.journal.exists():
            return []
        text = self.journal.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def add(self, counts: dict[str, list[float]]) -> None:
        """One step's counts by name, `BINS` numbers each."""
        self.steps.append(counts)
        with self.journal.open("a") as file:
            file.write(json.dumps(counts) + "\n")
        body = "".join(_picture(name, self.steps, self.longest) for name in RANGES)
        self._replace(self.page, f"<!doctype html><meta charset=utf-8>{_STYLE}{body}")

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        partial = path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


def ends_of(name: str, longest: int) -> tuple[float, float]:
    """Lower and upper end of a histogram in its own unit; lengths are in tokens."""
    scale = longest if name == "answer_tokens" else 1
    return RANGES[name][0] * scale, RANGES[name][1] * scale


_STYLE = "<style>body{font:13px sans-serif}figure{display:inline-block;margin:12px}</style>"


def _picture(name: str, steps: list[dict[str, list[float]]], longest: int) -> str:
    every = -(-len(steps) // COLUMNS)
    shown = steps[::every]
    width, height = CELL
    cells = []
    for column, counts in enumerate(shown):
        values = counts[name]
        most = max(values) or 1.0
        for bin_, count in enumerate(values):
            if count:
                y = (BINS - 1 - bin_) * height
                cells.append(
                    f'<rect x="{column * width}" y="{y}" width="{width}" height="{height}" '
                    f'fill="#1f4e79" fill-opacity="{count / most:.2f}"/>'
                )
    low, high = ends_of(name, longest)
    title = escape(LABELS.get(name, name))
    note = f"{title}: {low:g} (bottom) to {high:g} (top); step 1 to {len(steps)}"
    size = f'width="{max(len(shown), 20) * width}" height="{BINS * height}"'
    return f"<figure><figcaption>{note}</figcaption><svg {size}>{''.join(cells)}</svg></figure>"
