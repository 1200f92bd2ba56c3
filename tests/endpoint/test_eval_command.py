"""`klear eval`: any model or endpoint on any benchmark, its score and its protocol."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.sources import CollectSettings, Source
from klear.eval.records import Sample
from klear.eval.records.tables import read_table
from klear.flows.cli.main import main
from klear.tasks.models import eval_model, evaluate
from tests.endpoint.conftest import serving
from tests.eval.evaluations_by_hand import packed
from tests.tasks.manifests_by_hand import jsonl

KEY = "sk-very-secret-0123456789"
pytestmark = pytest.mark.usefixtures("own_home", "in_this_process")


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    rows = ({"question": f"What is {i} + 1?", "gt": str(i + 1)} for i in range(10))
    return jsonl(tmp_path / "sums.jsonl", *rows)


def evaluated(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["eval", *map(str, argv)])
    output = capsys.readouterr()
    return code, output.out, output.err


def results(output: str) -> list[dict[str, Any]]:
    return json.loads(folder(output).joinpath("results.json").read_text())


def folder(output: str) -> Path:
    return Path(output.strip().rpartition("results: ")[2]).parent


def right_on_even(prompt: str) -> str:
    """What the endpoint writes: right where the first summand is even."""
    number = int(prompt.split()[2])
    return f"<think>\nhm\n</think>\n\n\\boxed{{{number + 1 if number % 2 == 0 else 0}}}"


def test_an_endpoint_is_scored_on_a_local_file(sums, capsys):
    with serving(say=right_on_even) as endpoint:
        code, out, err = evaluated(capsys, endpoint.url, "--bench", sums, "--k", 3)
        assert code == 0, err
        attempts = endpoint.attempts.total()
        again = evaluated(capsys, endpoint.url, "--bench", sums, "--k", 3)
        assert endpoint.attempts.total() == attempts == 30
    assert again[1].splitlines()[:2] == out.splitlines()[:2]
    (result,) = results(out)
    assert (result["avg"], result["pass_at_k"], result["majority_at_k"]) == (0.5, 0.5, 0.5)
    assert (result["problems"], result["samples"], result["k"]) == (10, 30, 3)
    assert (result["sample_low"], result["sample_high"]) == (0.5, 0.5)  # siblings always agree
    statement = result["statement"]
    assert (statement["model"], statement["top_k"]) == ("teacher-r1", None)
    assert statement["engine"] == "OpenAI-compatible endpoint"
    row = next(line for line in out.splitlines() if line.startswith("sums"))
    assert row.split()[:3] == ["sums", "3", "50.0"]
    for words in ("top_k off", "repetition penalty off", "temperature 0.6", "top_p 0.95"):
        assert words in out
    assert len(list(read_table(folder(out) / "samples.parquet", Sample))) == 30


def test_the_question_carries_the_instruction_and_every_option_reaches_the_endpoint(sums, capsys):
    parameters = {"temperature": 0.7, "top_p": 0.8, "max_tokens": 77}
    parameters |= {"top_k": 20, "repetition_penalty": 1.05}
    options = [x for n, v in parameters.items() for x in ("--set", f"evaluate.sampling.{n}={v}")]
    few = ("--limit", 2, "--k", 1)
    with serving(say=right_on_even) as endpoint:
        code, output, _ = evaluated(capsys, endpoint.url, "--bench", sums, *few, *options)
    assert code == 0
    body = endpoint.bodies[0]
    assert body["messages"][0]["content"].endswith("put your final answer within \\boxed{}.")
    assert {n: body[n] for n in parameters} == parameters
    assert "top_k 20, repetition penalty 1.05" in output
    assert results(output)[0]["problems"] == 2


def published(text: str, output: str, date: str, starter: str = "") -> dict[str, str]:
    """A row of LiveCodeBench: one hidden test, packed; a functional problem through metadata."""
    test = {"input": text, "output": output, "testtype": "functional" if starter else "stdin"}
    return {
        "question_content": f"Find {output}.", "starter_code": starter, "contest_date": date,
        "metadata": '{"func_name": "double"}' if starter else "{}", "public_test_cases": "[]",
        "private_test_cases": packed([test]),
    }  # fmt: skip


def test_livecodebench_as_published_is_asked_with_its_starter_code_and_judged_on_hidden_tests(
    tmp_path, capsys, monkeypatch
):
    starter = "class Solution:\n    def double(self, n):"
    rows = [published("5", "7", "2024-09-01T00:00:00"),  # 5 + 1 is not 7
            published("21", "42", "2025-02-08T00:00:00", starter)]  # fmt: skip
    file = jsonl(tmp_path / "lcb.jsonl", *rows)
    here = CollectSettings(root="/", sources=(Source(use="livecodebench", files=(str(file),)),))
    monkeypatch.setattr(eval_model, "settings_to_collect", lambda *_: here)

    def program(prompt: str) -> str:
        text = (
            f"{starter}\n        return 2 * n" if starter in prompt else "print(int(input()) + 1)"
        )
        return f"<think>\nhm\n</think>\n\n```python\n{text}\n```"

    with serving(say=program) as endpoint:
        code, out, err = evaluated(capsys, endpoint.url, "--bench", "lcb_v5,lcb_v6", "--k", 1)
    assert code == 0, err
    assert [(r["name"], r["problems"], r["avg"], r["shared"]) for r in results(out)] == [
        ("lcb_v5", 2, 0.5, {"lcb_v6": 1}), ("lcb_v6", 1, 1.0, {"lcb_v5": 1})
    ]  # fmt: skip
    assert "1 of its problems are also in lcb_v6" in out
    assert endpoint.attempts.total() == 2  # the shared problem is asked once


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no/such", "--bench", "math50"], "no such benchmark; did you mean math500?"),
        (["org/model", "--bench", "nowhere.jsonl"], "--bench nowhere.jsonl: no such file"),
        (["org/model", "--bench", "aime24", "--k", "0"], "protocols.0.k: "),
        (["/tmp", "--bench", "aime24"], "/tmp: neither a folder with a model"),
        (["https://u:p@host/v1", "--bench", "aime24"], "must hold no user, password or query"),
        (["org/model", "--bench", "aime24", "--set", "engine.kindd=x"], "unknown key"),
        (["org/model", "--bench", "aime24", "--set", "evaluate.yarn_factor=2"], "see engine"),
        (["org/model", "--bench", "aime24", "--set", "evaluate.protocols.aime24.question=Solve!"],
         "{prompt} once"),
        (["org/model", "--bench", "aime24", "--model", "x"], "--model is for an endpoint"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2_and_says_what_to_change(argv, message, capsys):
    code, _, err = evaluated(capsys, *argv)
    assert (code, message in err) == (2, True), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("404", "for model r2; it serves: teacher-r1"),
        ("401", "the key is refused (HTTP 401)"),
        ("", "http://127.0.0.1:9/v1 does not say which models it serves: "),
    ],
)
def test_a_wrong_model_key_or_address_is_one_line_that_holds_no_key(
    sums, capsys, monkeypatch, fault, message
):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(lambda *_: fault) as endpoint:
        where = (endpoint.url, "--model", "r2") if fault else ("http://127.0.0.1:9/v1",)
        code, out, err = evaluated(capsys, *where, "--bench", sums)
    assert (code, message in err.strip().splitlines()[-1]) == (1, True), err
    assert KEY not in out + err


def test_other_settings_and_another_judge_are_other_results(sums, capsys, monkeypatch):
    with serving(say=right_on_even) as endpoint:
        words = (endpoint.url, "--bench", sums, "--limit", 1)
        attempts = []
        for more in ((), (), ("--set", "evaluate.sampling.temperature=0")):
            assert evaluated(capsys, *words, *more)[0] == 0
            attempts.append(endpoint.attempts.total())
        newer = dataclasses.replace(eval_model.eval_model, version=99)
        monkeypatch.setattr(eval_model, "eval_model", newer)
        assert evaluated(capsys, *words)[0] == 0
    assert [*attempts, endpoint.attempts.total()] == [1, 1, 2, 3]


def test_answers_of_an_attempt_that_ended_early_are_told_of_and_dropped_by_force(
    sums, capsys, caplog, monkeypatch
):
    """The endpoint may serve other weights by then, and call them the same."""

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    right = False
    with serving(say=lambda p: right_on_even(p) if right else "\\boxed{-1}") as endpoint:
        averages = []
        for limit, more in ((2, ()), (4, ("--force",))):
            words = (endpoint.url, "--bench", sums, "--limit", limit)
            right = False
            with monkeypatch.context() as patch:
                patch.setattr(evaluate, "judge_all", killed)
                with pytest.raises(RuntimeError, match="killed"):
                    evaluated(capsys, *words)
            right = True
            caplog.clear()
            code, out, _ = evaluated(capsys, *words, *more)
            assert code == 0
            assert ("goes on: 2 answers are of " in caplog.text) == (not more)
            averages.append(results(out)[0]["avg"])
    assert averages == [0.0, 0.5]
    assert endpoint.attempts.total() == 2 + 4 + 4


ROOT = Path(__file__).resolve().parents[2]
DISK_BYTES, PROBLEMS, ANSWER_BYTES, CONCURRENCY = 1 << 20, 40, 10_000, 4
SCRIPT = """
dd if=/dev/zero of=$DISK/filler bs=1024 count=$FILLER_KB status=none
"$@" >$SEEN/first.out 2>$SEEN/first.err; echo $? >$SEEN/first.code
cat $DISK/home/store/.work/eval_model/*/.resume/samples.jsonl >$SEEN/kept.jsonl 2>$SEEN/none
rm $DISK/filler
"$@" >$SEEN/second.out 2>$SEEN/second.err; echo $? >$SEEN/second.code
cp $DISK/home/store/eval_model/*/results.json $SEEN/
"""
"""Evaluate on a nearly full disk, make room, evaluate again."""


def long_answer(prompt: str) -> str:
    return f"<think>\n{prompt[8] * ANSWER_BYTES}\n</think>\n\n\\boxed{{1}}"


def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_room(tmp_path):
    """Room for a third of the answers."""
    seen, disk = tmp_path / "seen", tmp_path / "disk"
    seen.mkdir()
    disk.mkdir()
    rows = ({"question": f"What is {i} + 1?", "gt": "1"} for i in range(PROBLEMS))
    sums = jsonl(tmp_path / "sums.jsonl", *rows)
    bwrap = shutil.which("bwrap")
    assert bwrap, "apt install bubblewrap"
    small = [bwrap, "--dev-bind", "/", "/", "--size", str(DISK_BYTES), "--tmpfs", str(disk)]
    environment = {"DISK": str(disk), "SEEN": str(seen), "FILLER_KB": "700",
                   "KLEAR_HOME": str(disk / "home")}  # fmt: skip
    with serving(say=long_answer, latency_s=0.01) as endpoint:
        command = [sys.executable, "-m", "klear.flows.cli.main", "eval", endpoint.url,
                   "--bench", str(sums),
                   "--set", f"engine.runtime.concurrency={CONCURRENCY}"]  # fmt: skip
        done = subprocess.run(
            [*small, "sh", "-c", SCRIPT, "sh", *command],
            cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        )  # fmt: skip
    errors = (seen / "first.err").read_text()
    assert (seen / "first.code").read_text().strip() == "1", errors + done.stderr
    line = errors.strip().splitlines()[-1]
    assert "No space left on device, so no answer can be kept: make room and run again" in line
    assert "Traceback" not in errors
    kept = {json.loads(x)["problem_id"] for x in (seen / "kept.jsonl").read_text().splitlines()}
    assert PROBLEMS // 5 < len(kept) < PROBLEMS
    assert (seen / "second.code").read_text().strip() == "0", (seen / "second.err").read_text()
    (result,) = json.loads((seen / "results.json").read_text())
    assert (result["samples"], result["avg"]) == (PROBLEMS, 1.0)
    # Only what was on its way when the disk was full had to be asked for twice.
    assert endpoint.attempts.total() <= PROBLEMS + CONCURRENCY
