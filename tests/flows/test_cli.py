"""The command line: fast help, clear errors, fixed exit codes; a cost that is approved."""

import resource
import sys
from importlib.metadata import version
from unittest.mock import Mock

import pytest
from processes import output_of

from klear.configs.loading import load_profile
from klear.configs.settings.base import key_of
from klear.flows.cli import store
from klear.flows.cli.main import COMMANDS, main
from klear.flows.stages import approve_all
from klear.tasks.store.shared import StoreUnreachable

pytestmark = pytest.mark.usefixtures("own_home")


def test_help_is_instant_and_imports_nothing_heavy() -> None:
    def seconds(*command: str) -> float:
        """Of CPU: a busy machine is no slow command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output_of(sys.executable, *command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    nothing = min(seconds("-c", "pass") for _ in range(3))
    help_ = min(seconds("-m", "klear.flows.cli.main", "--help") for _ in range(3))
    assert help_ < 0.3 + 2 * nothing
    code = (
        "import sys; from klear.flows.cli.main import main; main(['--help'])\n"
        "sys.exit(','.join({'pydantic', 'prefect', 'mlflow', 'torch', 'pyarrow'} & "
        "set(sys.modules)) or 0)"
    )
    said = output_of(sys.executable, "-c", code)
    assert all(command in said for command in COMMANDS)


def test_a_run_imports_what_only_computing_needs_when_it_computes() -> None:
    code = (
        "import sys, klear.flows.cli.run, klear.flows.pipeline, klear.flows.forms.profile_form\n"
        "unneeded = {'torch', 'transformers', 'datasets', 'numba', 'matplotlib', 'sympy', 'ray', "
        "'sqlalchemy', 'klear.eval.judge.judge', 'klear.eval.math_answers.verify', "
        "'klear.configs.settings.ablation', 'klear.flows.forms.advanced_form'}\n"
        "sys.exit(','.join(unneeded & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "klear: name a command"),
        (["fly"], 'klear: Unknown command "fly"'),
        (["run"], "klear run: "),
        (["run", "tiny", "--fast"], "klear run: Unknown option: --fast"),
        (["judge"], "klear judge needs --problems, --samples and --out, or --stream"),
        (["judge", "--problems=p.jsonl"], "klear judge needs --problems, --samples and --out"),
        (["judge", "--stream", "--out=o.jsonl"], "klear judge needs --problems"),
        (["judge", "--stream", "--set", "sandbox=bublewrap"], "should be 'bubblewrap' or 'none'"),
        (["run", "enormous"], "no profile is called 'enormous'"),
        (["plan", "tiny", "--approve-cost", "nan"], "--approve-cost. Must be >= 0"),
        (["run", "tiny", "--force", "sftt"], 'Did you mean "sft"?'),
        (["plan", "tiny", "--seed", "-1"], "seed: -1 should be greater than or equal to 0"),
        # numpy takes 32 bits; a training stage would find out hours later.
        (["plan", "tiny", "--seed", str(2**32)], "should be less than 4294967296"),
        (["ablate", "table6_lm_weight", "--concurrent", "0"], "--concurrent. Must be >= 1"),
        (["store", "gc", "--days", "nan"], "--days. Must be >= 0"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(argv, said, capsys):
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_wrong_settings_exit_with_2_and_one_line_each(capsys):
    assert main(["run", "tiny", "--set", "sft.learning_rat=1", "--set", "sft.epochs=four"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "sft.epochs: 'four' should be a valid number, unable to parse string as a number",
        "sft.learning_rat: unknown key; did you mean sft.learning_rate?",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "command", "said"),
    [
        ("HOST", "0.0.0.0", ["status"], "KLEAR_HOST: "),
        ("STORE", "s4://b/f", ["store", "ls"], "KLEAR_STORE=s4://b/f: Protocol not known: s4"),
        ("STORE", "s3://", ["store", "ls"], "KLEAR_SHARED: s3:// is no address; write s3://"),
    ],
)
def test_a_wrong_variable_exits_with_2_and_one_line(
    variable: str, value: str, command: list[str], said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(f"KLEAR_{variable}", value)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StoreUnreachable("listing results: no connection"), 1, "listing results: no connection\n"),
        (KeyboardInterrupt(), 130, "interrupted; the same command continues from here\n"),
    ],
)
def test_an_expected_end_is_one_line_with_its_exit_code_and_no_traceback(
    error: BaseException, code: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(store, "open_store", Mock(side_effect=error))
    assert main(["store", "ls"]) == code
    assert capsys.readouterr().err == said


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"klear {version('klear')}\n"


def test_a_run_without_servers_says_what_to_do(capsys):
    assert main(["run", "tiny"]) == 1
    assert capsys.readouterr().err == "the servers are not up: run `klear up` first\n"


def test_the_option_approves_every_stage_that_asks_an_engine_and_changes_no_key():
    before = load_profile("tiny", ["distill.engine.runtime.approve_above=10"])
    after = approve_all(before, 30)
    runtime = after.distill.engine.runtime
    assert (runtime.approve_above, runtime.approved_cost) == (10, 30)
    assert after.sample.engine.runtime.approved_cost == 30
    assert after.rate is None
    assert key_of(after) == key_of(before)
