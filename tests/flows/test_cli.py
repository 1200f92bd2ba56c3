"""The command line: fast help, clear errors, fixed exit codes."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from configs.machine import Machine
from flows.cli import main

MINIMAL = """
collect: {sources: [{name: sums, kind: generated, family: countdown}]}
benchmarks: {}
distill: {engine: {kind: scripted}}
sample: {engine: {kind: scripted}}
"""


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in Machine.model_fields:
        monkeypatch.delenv(f"KLEAR_{name.upper()}", raising=False)
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(MINIMAL)
    return str(path)


def test_help_is_instant() -> None:
    def seconds(*command: str) -> float:
        """Of CPU: a busy machine is no slow command."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    nothing = min(seconds("-c", "pass") for _ in range(3))
    assert min(seconds("-m", "flows.cli", "--help") for _ in range(3)) < 0.3 + 2 * nothing


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flows.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'prefect', 'mlflow', 'torch', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "sys.exit(','.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for command in ("up", "down", "run", "status", "doctor", "judge", "decontaminate"):
        assert f"    {command}" in done.stdout


@pytest.mark.parametrize("argv", [[], ["fly"], ["run"], ["run", "tiny", "--fast"], ["judge"]])
def test_wrong_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: klear" in capsys.readouterr().err


def test_wrong_settings_exit_with_2_and_one_line_each(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "sft.learning_rat=1", "--set", "sft.epochs=four", "--force", "sftt"]
    assert main(["run", profile, *options, "--until", "raport"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "--force sftt: no such stage; did you mean sft?",
        "--until raport: no such stage; did you mean report?",
        "sft.epochs: 'four' is no number",
        "sft.learning_rat: unknown key; did you mean sft.learning_rate?",
    ]


def test_an_unknown_profile_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "enormous"]) == 2
    assert "no profile is called 'enormous'" in capsys.readouterr().err


def test_a_wrong_variable_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLEAR_HOST", "0.0.0.0")
    assert main(["status"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("KLEAR_HOST: ")


@pytest.mark.parametrize("command", [["up"], ["plan", "tiny"]])
def test_a_home_that_cannot_be_made_exits_with_2(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KLEAR_HOME", "/proc/here")

    assert main(command) == 2
    assert "KLEAR_HOME: /proc/here cannot be made" in capsys.readouterr().err


def test_a_negative_seed_exits_with_2(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", profile, "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "seed: -1 must be at least 0\n"


def test_a_seed_that_no_generator_takes_exits_with_2(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """numpy takes 32 bits; a training stage would find out hours later."""
    assert main(["run", profile, "--seed", str(2**32)]) == 2
    assert capsys.readouterr().err == f"seed: {2**32} must be below {2**32}\n"


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "tiny", "--approve-cost", "-3"],
        ["plan", "tiny", "--approve-cost", "nan"],
        ["plan", "tiny", "--approve-cost", "much"],
        ["ablate", "table6_lm_weight", "--seeds", "few"],
        ["ablate", "table6_lm_weight", "--concurrent", "0"],
        ["store", "gc", "--days", "nan"],
        ["store", "gc", "--days", "week"],
    ],
)
def test_a_wrong_amount_is_named_in_words(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert f"argument {argv[-2]}: {argv[-1]!r} is no " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s4://bucket/folder", "KLEAR_STORE=s4://bucket/folder: Protocol not known: s4"),
        ("s3://", "KLEAR_SHARED: s3:// is no address; write s3://bucket/folder or the like"),
    ],
)
def test_a_store_at_no_address_exits_with_2(
    address: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KLEAR_STORE", address)
    assert main(["store", "ls"]) == 2
    assert capsys.readouterr().err.strip() == said


def test_a_shared_store_out_of_reach_is_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tasks import object_store

    def out_of_reach(*_: object) -> None:
        raise object_store.StoreUnreachable("listing results: no connection")

    monkeypatch.setattr("tasks.shared_store.open_store", out_of_reach)
    assert main(["store", "ls"]) == 1
    assert capsys.readouterr().err == "listing results: no connection\n"


def test_a_run_without_servers_says_what_to_do(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", profile]) == 1
    assert capsys.readouterr().err == "the servers are not up: run `klear up` first\n"


def test_judge_settings_are_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--stream", "--sandbox", "bublewrap"]) == 2
    assert "did you mean bubblewrap?" in capsys.readouterr().err


def test_decontaminate_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["decontaminate", "--help"])
    assert caught.value.code == 0
    assert "--min-coverage" in capsys.readouterr().out


def test_down_without_servers_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().out == "nothing is running\n"
    assert not (tmp_path / "home").exists()
