"""`klear eval` at endpoints that behave as real ones do: a score, or one line with the setting."""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klear.configs.settings.engines import EngineSettings, Sampling
from klear.eval.records import Score
from klear.eval.records.tables import read_table
from klear.flows.cli.main import main
from klear.training.engines.endpoint import EndpointEngine, described, served_models
from klear.training.engines.interface import EngineError, Request
from tests.endpoint.conftest import MODEL, Endpoint, chat, error, serving
from tests.tasks.manifests_by_hand import jsonl

pytestmark = pytest.mark.usefixtures("own_home", "in_this_process", "quick")
RIGHT, BOX = "It is \\boxed{7}.", "so \\boxed{7}"


def always(reply: Any) -> Callable[..., Any]:
    return lambda *_: reply


@pytest.fixture
def server():
    with serving(always(chat(RIGHT))) as running:
        yield running


@pytest.fixture
def evaluated(server, tmp_path, capsys):
    rows = ({"question": f"What is {i} + {7 - i}?", "answer": "7"} for i in range(6))
    sevens = jsonl(tmp_path / "sevens.jsonl", *rows)

    def run(*argv: object, where: str = "", bench: str = "") -> tuple[int, str, str]:
        url = server.url.replace("/v1", f"{where}/v1")
        words = ["eval", url, "--bench", f"{sevens}{bench}", "--k", 1, *argv]
        code = main([str(w) for w in words])
        output = capsys.readouterr()
        assert "Traceback" not in output.out + output.err
        return code, output.out, output.err

    return run


def result(out: str) -> dict[str, Any]:
    folder = Path(out.strip().rpartition("results: ")[2]).parent
    (benchmark,) = json.loads((folder / "results.json").read_text())
    reasons = (s.reason for s in read_table(folder / "scores.parquet", Score))
    return {**benchmark, "reasons": dict(Counter(reasons))}


def unless(server: Endpoint, field: str, status: int, text: str) -> Callable[..., Any]:
    """Refuse requests that have the field."""
    return lambda *_: error(status, text) if field in server.bodies[-1] else chat(RIGHT)


def test_another_address_and_other_weights_are_another_model_and_a_reused_score_says_so(
    evaluated, server
):
    assert evaluated()[0] == 0
    code, out, _ = evaluated()
    assert (code, len(server.bodies)) == (0, 6)
    assert "cached: asked and scored on 20" in out
    assert "--force asks again" in out
    code, out, _ = evaluated(where="/b")
    assert (code, len(server.bodies), "cached" in out) == (0, 12, False)
    assert f"{MODEL} (at {server.url.replace('/v1', '/b/v1')} (root /weights/a))" in out
    server.models = [{"id": MODEL, "root": "/weights/b"}]
    assert evaluated()[0] == 0
    assert len(server.bodies) == 18


def test_force_asks_again_and_the_fingerprints_and_the_time_of_answers_are_shown(evaluated, server):
    assert evaluated()[0] == 0
    server.choose = always(chat("\\boxed{8}", fingerprint="fp_2"))
    assert result(evaluated()[1])["avg"] == 1.0
    code, out, _ = evaluated("--force")
    assert (code, result(out)["avg"], len(server.bodies)) == (0, 0.0, 12)
    assert f"UTC as {MODEL}, fingerprint fp_2" in out


def test_what_a_server_says_of_a_model_is_without_what_its_clock_writes(server):
    now = int(time.time())
    permission = [{"id": f"modelperm-{now}"}]
    server.models = [{"id": "x"}, {"id": MODEL, "created": now - 7, "permission": permission}]
    assert described(server.url, MODEL) == {}
    server.models = [{"id": MODEL, "created": 1_700_000_000, "owned_by": "us"}]
    assert described(server.url, MODEL) == {"owned_by": "us", "created": 1_700_000_000}
    assert served_models(server.url) == [MODEL]
    server.models = None
    assert described(server.url, MODEL) == {}
    with pytest.raises(EngineError, match="its answer has another form"):
        served_models(server.url)
    server.models = 405
    assert described(server.url, MODEL) == {}
    server.models = 500
    with pytest.raises(EngineError, match="does not say which models it serves: HTTP 500"):
        described(server.url, MODEL)


def test_where_all_is_refused_there_is_no_result_and_the_same_command_asks_again(evaluated, server):
    server.choose = always(error(400, "this account is not activated"))
    code, out, err = evaluated()
    assert (code, out) == (1, "")
    line = err.strip().splitlines()[-1]
    assert "each of 6 requests was refused" in line
    assert "HTTP 400 (this account is not activated)" in line
    server.choose = always(chat(RIGHT))
    code, out, _ = evaluated()
    assert (code, result(out)["avg"]) == (0, 1.0)


def test_some_refused_are_said_and_are_no_wrong_answers(evaluated, server):
    flagged = ("5 + 2", "0 + 7")
    server.choose = lambda prompt, _: (
        error(400, "prompt is flagged") if any(t in prompt for t in flagged) else chat(RIGHT)
    )
    code, out, _ = evaluated()
    benchmark = result(out)
    counts = benchmark["samples"], benchmark["samples_unscored"]
    assert (code, benchmark["avg"], counts) == (0, 1.0, (4, 2))
    assert "4 of 6 answers scored" in out
    assert "2 × the engine gave no answer: HTTP 400 (prompt is flagged)" in out


def test_a_benchmark_of_which_nothing_was_answered_has_no_score(evaluated, server, tmp_path):
    other = jsonl(tmp_path / "others.jsonl", {"question": "A forbidden one?", "answer": "7"})
    server.choose = lambda prompt, _: error(400, "no") if "forbidden" in prompt else chat(RIGHT)
    for attempts in (7, 8):  # what was refused is asked again, what was answered is not
        code, _, err = evaluated(bench=f",{other}")
        line = err.strip().splitlines()[-1]
        assert (code, len(server.bodies)) == (1, attempts)
        assert "others: no score, because none of 1 requests was answered: HTTP 400 (no)" in line
    server.choose = always(chat(RIGHT))
    assert evaluated(bench=f",{other}")[0] == 0


PARTS = [{"type": "thinking", "thinking": "\\boxed{8}"}, {"type": "text", "text": RIGHT}]


@pytest.mark.parametrize(
    ("reply", "avg", "reason"),
    [
        (chat(RIGHT, "length", reasoning="hm"), 1, ""),
        (chat(PARTS), 1, ""),
        (chat(RIGHT, "tool_calls", tool_calls=[]), 1, ""),
        (chat(None, reasoning_content=BOX), 0, "no answer: the reply ended with its reasoning"),
        (chat("", "length", reasoning_content=BOX), 0, "truncated: the think block is not closed"),
        (chat(f"Hm, {BOX}? No, wait", "length"), 0,
         "truncated: it was cut at max_tokens before an answer came"),
    ],
)  # fmt: skip
def test_an_answer_is_what_follows_the_thinking_in_whatever_form(
    evaluated, server, reply, avg, reason
):
    server.choose = always(reply)
    code, out, err = evaluated("--limit", 2)
    assert code == 0, err
    benchmark = result(out)
    assert benchmark["avg"] == avg
    if reason:
        assert benchmark["reasons"] == {reason: 2}
    if reason.startswith(("no answer", "truncated: it was")):
        assert f"2 × {reason}" in out
    assert benchmark["truncated"] == (2 if "length" in reply[1] else 0)


@pytest.mark.parametrize("cut", [False, True])
def test_thinking_in_other_tags_is_refused_by_name_and_read_by_the_setting(evaluated, server, cut):
    opened, closed = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    thought = f"{opened}We try \\boxed{{8}}"
    whole_text = thought if cut else f"{thought}.{closed}{RIGHT}"
    server.choose = always(chat(whole_text, "length" if cut else "stop"))
    code, _, err = evaluated("--limit", 2)
    line = err.strip().splitlines()[-1]
    assert (code, f"thinks in {opened}…{closed}" in line) == (1, True), line
    assert len(server.bodies) <= 2
    cure = line.partition(": set ")[2].replace("'", "")
    code, out, err = evaluated("--limit", 2, "--set", cure)  # as typed in a shell
    assert (code, result(out)["avg"]) == (0, 0.0 if cut else 1.0), err


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    messages: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("klear"), "handlers", [handler])
    return messages


def test_the_other_name_of_max_tokens_is_learnt_once_and_said_with_its_setting(
    evaluated, server, warned
):
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
    server.choose = unless(server, "max_tokens", 400, f"{text}'max_completion_tokens' instead.")
    code, out, _ = evaluated("--set", "evaluate.sampling.max_tokens=99")
    assert (code, result(out)["avg"], server.faults["400"]) == (0, 1.0, 1)
    assert server.bodies[-1]["max_completion_tokens"] == 99
    assert len(warned) == 1
    cure = "engine.parameters.max_tokens=max_completion_tokens"
    assert cure in warned[0]
    assert evaluated("--set", cure)[0] == 0
    assert server.faults["400"] == 1


def test_stream_options_go_without_a_word_and_cost_one_request(evaluated, server, warned):
    text = "Unrecognized request argument: stream_options"
    server.choose = unless(server, "stream_options", 400, text)
    code, out, _ = evaluated()
    assert (code, result(out)["avg"], server.faults["400"], warned) == (0, 1.0, 1, [])


@pytest.mark.parametrize(
    ("parameter", "status", "body"),
    [
        ("temperature", 400, {"error": {"message": "Unsupported value: 'temperature' does not "
                                        "support 0.6. Only the default (1) value is supported."}}),
        ("seed", 422, {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs: no"}]}),
    ],
)  # fmt: skip
def test_a_parameter_that_changes_answers_is_one_line_and_omitted_by_the_setting(
    evaluated, server, parameter, status, body
):
    server.choose = lambda *_: (
        (status, json.dumps(body)) if parameter in server.bodies[-1] else chat(RIGHT)
    )
    code, _, err = evaluated()
    line = err.strip().splitlines()[-1]
    assert (code, len(server.bodies)) == (1, 1)
    assert f"refuses {parameter}: HTTP {status} (" in line
    assert "body.seed: Extra inputs" in line or parameter != "seed"
    cure = f"engine.parameters.{parameter}=omit"
    assert f"set {cure}" in line
    code, out, _ = evaluated("--set", cure)
    benchmark = result(out)
    assert (code, benchmark["avg"], benchmark["statement"]["not_sent"]) == (0, 1.0, [parameter])
    assert f"NOT SENT, so the endpoint's own: {parameter}" in out


def test_a_max_tokens_that_is_too_large_is_one_line_with_the_number_that_works(evaluated, server):
    text = "max_tokens is too large: 32768. This model supports at most 16384 completion tokens"
    server.choose = lambda *_: (
        error(400, text) if server.bodies[-1]["max_tokens"] > 16384 else chat(RIGHT)
    )
    code, _, err = evaluated()
    assert (code, len(server.bodies)) == (1, 1)
    assert err.strip().endswith("set sampling.max_tokens=16384")
    assert evaluated("--set", "evaluate.sampling.max_tokens=16384")[0] == 0


def answers(server: Endpoint, count: int = 16) -> list[Any]:
    at = {"kind": "openai", "model": MODEL, "base_url": server.url, "api_key_env": ""}
    engine = EndpointEngine(EngineSettings.model_validate(at), Sampling())
    return list(engine.answer(Request(f"p{i}", 0, "?") for i in range(count)))


def test_a_retry_after_holds_all_requests_until_it_is_over_and_one_of_hours_is_one_line(server):
    wait, over = 1.0, time.monotonic() + 1.0
    slow_down = error(429, "slow down", retry_after=str(wait))
    server.choose = lambda *_: slow_down if time.monotonic() < over else chat(RIGHT)
    assert len(answers(server)) == 16
    assert server.faults["429"] == 1
    assert time.monotonic() >= over
    server.choose = always(error(429, "daily limit", retry_after="7200"))
    with pytest.raises(EngineError, match=r"HTTP 429 \(daily limit\) and says to wait 2.0 hours"):
        answers(server)
    assert server.faults["429"] == 2


def test_an_account_without_credit_is_not_waited_for(server):
    refused = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    server.choose = always((429, json.dumps({"error": refused})))
    with pytest.raises(EngineError, match="the account has no credit left"):
        answers(server, 1)


def test_an_endpoint_that_is_dead_and_a_reply_without_a_finish_reason_are_one_line(
    evaluated, server
):
    once = ("--set", "engine.runtime.max_retries=1")
    server.choose = always(error(502, "bad gateway"))
    code, _, err = evaluated(*once)
    assert (code, err.count("klear eval: ")) == (1, 1)
    assert "HTTP 502 (bad gateway)" in err.splitlines()[-1]
    server.choose = always(chat(RIGHT, None))
    code, _, err = evaluated(*once)
    assert (code, "the stream was cut" in err) == (1, True)
