"""The command line: fast help, clear errors, fixed exit codes, and what the display says."""

import io
import re
import sys
from importlib.metadata import version
from unittest.mock import Mock

import pytest
from processes import output_of
from rich.console import Console

from klear.configs.settings.pipeline import STAGES
from klear.flows.cli import run, store
from klear.flows.cli.main import COMMANDS, main
from klear.tasks.observe.terminal import Terminal
from klear.tasks.report.figures import WORDS, figure_of
from klear.tasks.store.shared import StoreUnreachable

pytestmark = pytest.mark.usefixtures("own_home")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from klear.flows.cli.main import main; main(['--help'])\n"
        "sys.exit(','.join({'pydantic', 'prefect', 'mlflow', 'torch', 'pyarrow'} & "
        "set(sys.modules)) or 0)"
    )
    output = output_of(sys.executable, "-c", code)
    assert all(command in output for command in COMMANDS)


def test_a_run_imports_what_only_computing_needs_when_it_computes() -> None:
    code = (
        "import sys, klear.flows.cli.run, klear.flows.cockpit.flows\n"
        "unneeded = {'torch', 'transformers', 'datasets', 'numba', 'matplotlib', 'sympy', 'ray', "
        "'sqlalchemy', 'klear.eval.judge.judge', 'klear.eval.math_answers.verify', "
        "'klear.configs.ablation'}\n"
        "print(*unneeded & set(sys.modules))"
    )
    assert not output_of(sys.executable, "-c", code).strip()


@pytest.mark.parametrize(("argv", "message"), [
    ([], "klear: name a command"),
    (["fly"], 'klear: Unknown command "fly"'),
    (["run"], "klear run: "),
    (["run", "tiny", "--fast"], "klear run: Unknown option: --fast"),
    (["judge"], "klear judge needs --problems, --samples and --out, or --stream"),
    (["judge", "--problems=p.jsonl"], '"p.jsonl" does not exist'),
    (["judge", "--stream", "--out=o.jsonl"], "klear judge needs --problems"),
    (["judge", "--stream", "--set", "sandbox=bublewrap"], "should be 'bubblewrap' or 'none'"),
    (["run", "enormous"], "no profile is called 'enormous'"),
    (["plan", "tiny", "--approve-cost", "nan"], "--approve-cost. Must be >= 0"),
    (["run", "tiny", "--force", "sftt"], 'Did you mean "sft"?'),
    # numpy takes 32 bits; a training stage would find out hours later.
    (["plan", "tiny", "--seed", str(2**32)], "should be less than 4294967296"),
])  # fmt: skip
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_wrong_settings_exit_with_2_and_one_line_each(capsys):
    assert main(["run", "tiny", "--set", "sft.learning_rat=1", "--set", "sft.epochs=four"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sft.epochs: 'four' should be a valid number, unable to parse string as a number",
        "sft.learning_rat: unknown key; did you mean sft.learning_rate?",
    ]


@pytest.mark.parametrize(("variable", "value", "command", "message"), [
    ("HOST", "0.0.0.0", ["status"], "KLEAR_HOST: "),
    ("STORE", "s4://b/f", ["store", "ls"], "KLEAR_STORE=s4://b/f: Protocol not known: s4"),
    ("STORE", "s3://", ["store", "ls"], "KLEAR_SHARED: s3:// is no address; write s3://"),
])  # fmt: skip
def test_a_wrong_variable_exits_with_2_and_one_line(
    variable, value, command, message, monkeypatch, capsys
):
    monkeypatch.setenv(f"KLEAR_{variable}", value)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(("error", "code", "message"), [
    (StoreUnreachable("listing results: no connection"), 1, "listing results: no connection\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
])  # fmt: skip
def test_an_expected_end_is_one_line_with_its_exit_code_and_no_traceback(
    error, code, message, monkeypatch, capsys
):
    monkeypatch.setattr(store, "open_store", Mock(side_effect=error))
    assert main(["store", "ls"]) == code
    assert capsys.readouterr().err == message


def test_the_version_is_said_and_a_run_without_servers_says_what_to_do(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"klear {version('klear')}\n"
    assert main(["run", "tiny"]) == 1
    assert capsys.readouterr().err == "the servers are not up: run `klear up` first\n"


def shown(terminal: bool = False) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    return Terminal(console), out


def test_each_stage_that_computes_ends_in_one_line_and_all_that_were_reused_share_one() -> None:
    screen, out = shown(terminal=True)
    with screen:
        for stage in ("collect", "dedup"):
            screen.finished(stage, "cached", 99.0, {})
        screen.started("judge", "never computed")
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
