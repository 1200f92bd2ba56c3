"""The report's own story: what was planned, what ran, what was reused, and where to look."""

from collections import Counter
from collections.abc import Callable

from eval.page import Block, Cell, Heading, Paragraph, Table
from eval.report_training import duration
from eval.run_story import Expected, Happened, RunStory

TITLES = {"seconds": "Time", "bytes": "Disk", "tokens": "Tokens", "cost": "Price"}
UNITS = ("B", "kB", "MB", "GB", "TB")
SLOWER, FASTER = 1.5, 0.67
WORTH_A_WORD_S = 5.0
"""A difference of less than this is noise."""
ORDER = ("computed", "resumed", "reused")
LONGEST_WHY = 90


def _size(count: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    power = next((i for i in range(len(UNITS)) if count < 1000 ** (i + 1)), len(UNITS) - 1)
    return f"{count / 1000**power:.{min(power, 1)}f} {UNITS[power]}"


FIGURES: dict[str, Callable[[float], str]] = {
    "seconds": duration,
    "bytes": _size,
    "tokens": lambda v: f"{v:,.0f}",
    "cost": lambda v: f"{v:,.2f}",
}
"""Figures of a stage by field, and how each is written."""


def run_section(story: RunStory | None) -> list[Block]:
    """The run in one sentence, then plan against outcome for every stage."""
    if story is None or not story.happened:
        return []
    columns = [c for c in FIGURES if any(getattr(h, c) is not None for h in story.happened)]
    return [
        Heading("What ran"),
        Paragraph(summary(story)),
        *_about(story),
        Table(
            ("Stage", "Outcome", *(TITLES[c] for c in columns)),
            tuple(_row(story, h, columns) for h in story.happened),
            caption="Every outcome was the planned one unless it says otherwise. Time, disk, "
            "tokens and price are those of the computation, also for results that were reused; "
            "expected, or assumed where nothing was measured, is what the plan said before the run "
            "began.",
            prose=frozenset({1}),
            stacked=True,
        ),
    ]


def summary(story: RunStory) -> str:
    """`21 stages: 3 computed, 18 reused. Expected 4 min 10 s of computing, took 4 min 02 s.`"""
    counts = Counter(h.action for h in story.happened)
    parts = ", ".join(f"{counts[a]} {a}" for a in ORDER if counts[a])
    text = f"{len(story.happened)} stages: {parts}."
    made = [h for h in story.happened if h.action != "reused"]
    if not made:
        return f"{text} Nothing had to be computed."
    expected = [e.seconds for h in made if (e := story.expected(h.stage)) and e.seconds is not None]
    took = duration(sum(h.seconds for h in made))
    if len(expected) == len(made):
        return f"{text} Expected {duration(sum(expected))} of computing, took {took}."
    unknown = len(made) - len(expected)
    return f"{text} Computing took {took}; {unknown} stages had never been measured before."


def _about(story: RunStory) -> list[Block]:
    facts: list[tuple[str, Cell]] = [
        (title, Cell(value))
        for title, value in (
            ("Run", story.name),
            ("Started", story.started),
            ("Commit", story.commit),
        )
        if value
    ]
    facts += [(name, Cell(url, link=url)) for name, url in story.links.items() if url]
    return [Table(("This run", ""), tuple(facts), prose=frozenset({1}))] if facts else []


def _row(story: RunStory, h: Happened, columns: list[str]) -> tuple[str | Cell, ...]:
    expected = story.expected(h.stage)
    figures = (_figure(expected, h, name) for name in columns)
    return (Cell(h.stage, link=h.url), _outcome(expected, h), *figures)


def _figure(expected: Expected | None, h: Happened, name: str) -> Cell:
    """What it took, and what was expected of a stage that had to be computed."""
    value, written = getattr(h, name), FIGURES[name]
    if value is None:
        return Cell("–")
    wanted = getattr(expected, name) if expected and h.action != "reused" else None
    if wanted is None:
        return Cell(written(value))
    said = "assumed" if expected and expected.basis == "assumed" else "expected"
    change = _change(wanted, h) if name == "seconds" and said == "expected" else ""
    return Cell(written(value), f"{said} {written(wanted)}", change, "quiet")


def _outcome(expected: Expected | None, h: Happened) -> Cell:
    """What became of the stage and why; what was planned, where it became something else."""
    why = expected.why if expected and h.why in ("", "new") else h.why
    surprise = ""
    if expected and (expected.action == "reuse") != (h.action == "reused"):
        surprise = f"planned to {expected.action}"
    return Cell(h.action, detail=_short(why), change=surprise, tone="bad" if surprise else "")


def _change(expected: float | None, h: Happened) -> str:
    if not expected or h.action == "reused" or abs(h.seconds - expected) < WORTH_A_WORD_S:
        return ""
    ratio = h.seconds / expected
    return f"×{ratio:.1f}" if ratio > SLOWER or ratio < FASTER else ""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_WHY else f"{text[: LONGEST_WHY - 1]}…"
