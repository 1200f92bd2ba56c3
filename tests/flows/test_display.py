"""The progress display says what was computed, what was reused, and how far a stage is."""

import io
import re
from unittest.mock import Mock

from rich.console import Console

from klear.configs.settings.pipeline import STAGES
from klear.flows.cli import run
from klear.flows.cli.run import Terminal
from klear.tasks.stage.progress import WORDS, figure_of


def shown(terminal: bool = False) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    return Terminal(console), out


def test_each_stage_that_computes_ends_in_one_line_and_all_that_were_reused_share_one() -> None:
    screen, out = shown(terminal=True)
    with screen:
        for stage in ("collect", "dedup"):
            screen.finished(stage, "cached", 99.0, {})
        screen.started("judge", "new")
        screen.finished("judge", "computed", 1.25, {"scores": 10605.0, "correct_share": 0.52})
        screen.finished("rl_math", "failed", 2.0, {})
    lines = re.findall(r"[=✓✗] [^\r\n\x1b]+", out.getvalue())  # among them the bars' own codes
    assert [" ".join(line.split()) for line in lines] == [
        "= 2 stages cached", "✓ judge 1.2 s 52.0 % right of 10,605 answers", "✗ rl_math 2.0 s",
    ]  # fmt: skip
    assert screen.counts == {"computed": 1, "cached": 2, "failed": 1}
    log, out = shown()
    with log:
        log.finished("collect", "cached", 99.0, {})
    assert out.getvalue() == "= 1 stage cached: collect\n"  # a file can be searched


def test_a_run_that_ctrl_c_ends_exits_with_130(capsys) -> None:
    assert run.run_shown("title", Mock(side_effect=KeyboardInterrupt)) == 130
    assert "interrupted\nThe same command continues from here." in capsys.readouterr().out


def test_without_a_terminal_and_in_the_log_progress_is_a_line_now_and_then_with_rate_and_time_left(
    monkeypatch, caplog
):
    caplog.set_level("INFO", "klear")
    now = [0.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    screen, out = shown()
    screen.started("sft", "resuming")
    for second in range(0, 65):
        now[0] = float(second)
        screen.progress("sft", 1000 + 10 * second, 2000, "loss 1.0")
    logged = [m.removeprefix("sft: ") for m in caplog.messages if " of " in m]
    assert logged[0] == "1,300 of 2,000 (65 %), 10/s, 1 min 10 s left, loss 1.0"
    assert len(logged) == 2  # in 65 seconds
    assert [line.split(maxsplit=1)[1] for line in out.getvalue().splitlines()[-2:]] == logged


def test_every_stage_has_a_sentence_and_no_figure_is_written_with_an_exponent() -> None:
    scores = {"countdown_test/avg": 0.4125, "countdown_test/ci_low": 0.35, "aime24/avg": 0.1}
    assert figure_of("evaluate_sft", scores) == "41.2 % math · 10.0 % AIME 2024"
    kept, own = {"kept": 12345.0, "rejected": 5.0}, {"tokens": 12345678.0, "x": 1 / 3, "y": 1.0}
    assert figure_of("dedup", kept) == "12,345 of 12,350 problems kept"
    assert figure_of("own", own) == "tokens 12,345,678, x 0.333"
    assert {s for s in STAGES if not s.startswith("evaluate_")} == set(WORDS["stages"])
