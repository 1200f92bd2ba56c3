"""The progress display says what was computed, what was reused, and how far a stage is."""

import io

from rich.console import Console

from flows.cli import run
from flows.cli.run import Terminal


def shown(terminal: bool = False) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    return Terminal(console), out


def test_each_stage_ends_in_one_line_with_its_outcome_and_figures() -> None:
    screen, out = shown()
    with screen.bars:
        screen.started("dedup", "new")
        figures = {"kept": 12.0, "rejected": 3.0, "c": 1 / 3, "d": 0.0, "e": 5.0}
        screen.finished("dedup", "computed", 1.25, figures)
        screen.finished("sft", "cached", 99.0, {})
        screen.started("rl_math", "resuming")
        screen.finished("rl_math", "failed", 2.0, {})
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert lines[1] == ["✓", "dedup", "1.2", "s", "kept=12", "rejected=3", "c=0.3333", "d=0"]
    assert lines[2] == ["=", "sft", "cached"]
    assert lines[3] == ["rl_math", "resuming"]
    assert screen.counts == {"computed": 1, "cached": 1, "failed": 1}


def test_without_a_terminal_progress_is_a_line_now_and_then(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    screen, out = shown()
    screen.started("sft", "new")
    for second in range(0, 65):
        now[0] = float(second)
        screen.progress("sft", second, 100, "loss 1.0")
    progress = [line for line in out.getvalue().splitlines() if "/100" in line]
    assert [line.split()[1] for line in progress] == ["30/100", "60/100"]
