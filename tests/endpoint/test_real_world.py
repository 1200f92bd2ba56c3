"""`klear eval` at endpoints that behave as real ones do: a score, or one line with the setting."""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.records import Score
from klear.eval.records.tables import read_table
from klear.flows.cli.main import main
from klear.training.engines import admission
from klear.training.engines import endpoint as module
from klear.training.engines.endpoint import EndpointEngine, described
from klear.training.engines.interface import EngineError, Request
from tests.endpoint.conftest import MODEL, serving_routes
from tests.tasks.manifests_by_hand import jsonl

pytestmark = pytest.mark.usefixtures("own_home")
RIGHT, BOX = "It is \\boxed{7}.", "so \\boxed{7}"
Message = dict[str, Any]


class Server:
    """Says `message` to everything, under two addresses; `refuse` may answer before that."""

    def __init__(self) -> None:
        self.message: Message = {"content": RIGHT}
        self.finish: str | None = "stop"
        self.fingerprint = "fp_1"
        self.models: list[dict[str, Any]] | int = [{"id": MODEL, "root": "/weights/a"}]
        self.refuse: Callable[[dict[str, Any]], web.Response | None] = lambda body: None
        self.bodies: list[dict[str, Any]] = []
        self.refused: list[float] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/{where}/v1/models", self.list),
            web.post("/{where}/v1/chat/completions", self.complete),
        ]

    async def list(self, _: web.Request) -> web.Response:
        if isinstance(self.models, int):
            return web.json_response({"error": "no list"}, status=self.models)
        return web.json_response({"object": "list", "data": self.models})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if (refusal := self.refuse(body)) is not None:
            self.refused.append(time.monotonic())
            return refusal
        choice = {"index": 0, "finish_reason": self.finish, "message": self.message}
        usage = {"prompt_tokens": 5, "completion_tokens": 7}
        named = {"model": MODEL, "system_fingerprint": self.fingerprint}
        return web.json_response({**named, "choices": [choice], "usage": usage})


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(admission, "SHORTEST_HOLD_S", 0.01)
    running = Server()
    with serving_routes(running.routes()) as url:
        running.url = url.removesuffix("/v1")  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def sevens(tmp_path: Path) -> Path:
    rows = ({"question": f"What is {i} + {7 - i}?", "answer": "7"} for i in range(6))
    return jsonl(tmp_path / "sevens.jsonl", *rows)


@pytest.fixture
def evaluated(server, sevens, capsys):
    def run(*argv: object, where: str = "a", bench: object = sevens) -> tuple[int, str, str]:
        words = ["eval", f"{server.url}/{where}/v1", "--bench", bench, "--k", 1, *argv]
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


def setting(name: str, value: Any) -> tuple[str, str]:
    return "--set", f"{name}={value}"


def test_another_address_is_another_model_and_a_score_that_is_reused_says_so(evaluated, server):
    assert evaluated()[0] == 0
    code, out, _ = evaluated()
    assert (code, len(server.bodies)) == (0, 6)
    assert "cached: asked and scored on 20" in out
    assert "--force asks again" in out
    code, out, _ = evaluated(where="b")
    assert (code, len(server.bodies), "cached" in out) == (0, 12, False)
    assert f"{MODEL} (at {server.url}/b/v1 (root /weights/a))" in out


def test_force_asks_again_and_the_fingerprints_and_the_time_of_answers_are_shown(evaluated, server):
    assert evaluated()[0] == 0
    server.fingerprint, server.message = "fp_2", {"content": "\\boxed{8}"}
    assert result(evaluated()[1])["avg"] == 1.0
    code, out, _ = evaluated("--force")
    assert (code, result(out)["avg"], len(server.bodies)) == (0, 0.0, 12)
    assert f"UTC as {MODEL}, fingerprint fp_2" in out


def test_other_weights_under_the_same_address_and_name_are_another_model(evaluated, server):
    assert evaluated()[0] == 0
    server.models = [{"id": MODEL, "root": "/weights/b"}]
    assert evaluated()[0] == 0
    assert len(server.bodies) == 12


def test_what_a_server_says_of_a_model_is_without_what_its_clock_writes(server):
    now = int(time.time())
    permission = [{"id": f"modelperm-{now}"}]
    server.models = [{"id": "x"}, {"id": MODEL, "created": now - 7, "permission": permission}]
    assert described(f"{server.url}/a/v1", MODEL) == {}
    server.models = [{"id": MODEL, "created": 1_700_000_000, "owned_by": "us"}]
    assert described(f"{server.url}/a/v1", MODEL) == {"owned_by": "us", "created": 1_700_000_000}
    server.models = 405
    assert described(f"{server.url}/a/v1", MODEL) == {}
    server.models = 500
    with pytest.raises(EngineError, match="does not say which models it serves: HTTP 500"):
        described(f"{server.url}/a/v1", MODEL)


def refusal(status: int, text: str, **headers: str) -> web.Response:
    body = json.dumps({"error": {"message": text}})
    names = {n.replace("_", "-"): v for n, v in headers.items()}
    return web.Response(text=body, status=status, headers=names, content_type="application/json")


def test_where_all_is_refused_there_is_no_result_and_the_same_command_asks_again(evaluated, server):
    server.refuse = lambda body: refusal(400, "this account is not activated")
    code, out, err = evaluated()
    assert (code, out) == (1, "")
    line = err.strip().splitlines()[-1]
    assert "each of 6 requests was refused" in line
    assert "HTTP 400 (this account is not activated)" in line
    server.refuse = lambda body: None
    code, out, _ = evaluated()
    assert (code, result(out)["avg"]) == (0, 1.0)


def test_some_refused_are_said_and_are_no_wrong_answers(evaluated, server):
    def refuse(body: dict[str, Any]) -> web.Response | None:
        flagged = any(text in body["messages"][0]["content"] for text in ("5 + 2", "0 + 7"))
        return refusal(400, "prompt is flagged") if flagged else None

    server.refuse = refuse
    code, out, _ = evaluated()
    benchmark = result(out)
    counts = benchmark["samples"], benchmark["samples_unscored"]
    assert (code, benchmark["avg"], counts) == (0, 1.0, (4, 2))
    assert "4 of 6 answers scored" in out
    assert "2 × the engine gave no answer: HTTP 400 (prompt is flagged)" in out


def test_a_benchmark_of_which_nothing_was_answered_has_no_score(evaluated, server, sevens):
    other = sevens.with_name("others.jsonl")
    other.write_text('{"question": "A forbidden one?", "answer": "7"}\n')
    bad = "A forbidden one"
    server.refuse = lambda b: refusal(400, "no") if bad in b["messages"][0]["content"] else None
    both = f"{sevens},{other}"
    for attempts in (7, 8):  # what was refused is asked again, what was answered is not
        code, _, err = evaluated(bench=both)
        line = err.strip().splitlines()[-1]
        assert (code, len(server.bodies)) == (1, attempts)
        assert "others: no score, because none of 1 requests was answered: HTTP 400 (no)" in line
    server.refuse = lambda body: None
    assert evaluated(bench=both)[0] == 0


@pytest.mark.parametrize(
    ("message", "finish", "avg", "reason"),
    [
        ({"content": RIGHT, "reasoning": "hm"}, "length", 1, ""),
        ({"content": [{"type": "thinking", "thinking": "\\boxed{8}"},
                      {"type": "text", "text": RIGHT}]}, "stop", 1, ""),
        ({"content": RIGHT, "tool_calls": []}, "tool_calls", 1, ""),
        ({"content": None, "reasoning_content": BOX}, "stop", 0,
         "no answer: the reply ended with its reasoning"),
        ({"content": "", "reasoning_content": BOX}, "length", 0,
         "truncated: the think block is not closed"),
        ({"content": f"Hm, {BOX}? No, wait"}, "length", 0,
         "truncated: it was cut at max_tokens before an answer came"),
    ],
)  # fmt: skip
def test_an_answer_is_what_follows_the_thinking_in_whatever_form(
    evaluated, server, message, finish, avg, reason
):
    server.message, server.finish = message, finish
    code, out, err = evaluated("--limit", 2)
    assert code == 0, err
    benchmark = result(out)
    assert benchmark["avg"] == avg
    if reason:
        assert benchmark["reasons"] == {reason: 2}
    if reason.startswith(("no answer", "truncated: it was")):
        assert f"2 × {reason}" in out
    assert benchmark["truncated"] == (2 if finish == "length" else 0)


@pytest.mark.parametrize("cut", [False, True])
def test_thinking_in_other_tags_is_refused_by_name_and_read_by_the_setting(evaluated, server, cut):
    opened, closed = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    thought = f"{opened}We try \\boxed{{8}}"
    server.message = {"content": thought if cut else f"{thought}.{closed}{RIGHT}"}
    server.finish = "length" if cut else "stop"
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


def unless(field: str, status: int, text: str, **headers: str) -> Any:
    return lambda body: refusal(status, text, **headers) if field in body else None


def test_the_other_name_of_max_tokens_is_learnt_once_and_said_with_its_setting(
    evaluated, server, warned
):
    server.refuse = unless("max_tokens", 400, "Unsupported parameter: 'max_tokens' is not supported"
                           " with this model. Use 'max_completion_tokens' instead.")  # fmt: skip
    code, out, _ = evaluated(*setting("evaluate.sampling.max_tokens", 99))
    assert (code, result(out)["avg"], len(server.refused)) == (0, 1.0, 1)
    assert server.bodies[-1]["max_completion_tokens"] == 99
    assert len(warned) == 1
    assert "engine.parameters.max_tokens=max_completion_tokens" in warned[0]
    server.refused.clear()
    name = setting("engine.parameters.max_tokens", "max_completion_tokens")
    assert evaluated(*name)[0] == 0
    assert not server.refused


def test_stream_options_go_without_a_word_and_cost_one_request(evaluated, server, warned):
    server.refuse = unless("stream_options", 400, "Unrecognized request argument: stream_options")
    code, out, _ = evaluated()
    assert (code, result(out)["avg"], len(server.refused), warned) == (0, 1.0, 1, [])


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
    server.refuse = lambda b: web.json_response(body, status=status) if parameter in b else None
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
    server.refuse = lambda b: refusal(400, text) if b["max_tokens"] > 16384 else None
    code, _, err = evaluated()
    assert (code, len(server.bodies)) == (1, 1)
    assert err.strip().endswith("set sampling.max_tokens=16384")
    assert evaluated(*setting("evaluate.sampling.max_tokens", 16384))[0] == 0


def engine(server: Server, **runtime: Any) -> EndpointEngine:
    settings = EngineSettings(
        kind="openai", model=MODEL, base_url=f"{server.url}/a/v1",  # type: ignore[attr-defined]
        api_key_env="", runtime=EngineRuntime(**runtime),
    )  # fmt: skip
    return EndpointEngine(settings, Sampling())


def test_a_retry_after_holds_all_requests_until_it_is_over(server):
    began = time.monotonic()
    wait, over = 1.5, began + 1.5
    server.refuse = lambda _: (
        refusal(429, "slow down", retry_after=str(wait)) if time.monotonic() < over else None
    )
    answers = engine(server).answer(Request(f"p{i}", 0, "?") for i in range(16))
    assert len(list(answers)) == 16
    assert len(server.refused) == 1
    assert time.monotonic() - began >= wait


def test_a_wait_of_more_than_an_hour_is_one_line(server):
    server.refuse = lambda _: refusal(429, "daily limit", retry_after="7200")
    with pytest.raises(EngineError, match=r"HTTP 429 \(daily limit\) and says to wait 2.0 hours"):
        list(engine(server).answer(Request(f"p{i}", 0, "?") for i in range(16)))
    assert len(server.refused) == 1


def test_an_account_without_credit_is_not_waited_for(server):
    error = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
    server.refuse = lambda _: web.json_response({"error": error}, status=429)
    with pytest.raises(EngineError, match="the account has no credit left"):
        list(engine(server).answer([Request("p", 0, "?")]))


def test_an_endpoint_that_is_dead_is_one_line(evaluated, server):
    server.refuse = lambda _: refusal(502, "bad gateway")
    few = setting("engine.runtime.max_retries", 2)
    code, _, err = evaluated(*few)
    assert code == 1
    assert len([x for x in err.splitlines() if x.startswith("klear eval: ")]) == 1
    assert "HTTP 502 (bad gateway)" in err.splitlines()[-1]
    server.url = "http://127.0.0.1:9"
    code, out, err = evaluated("--model", MODEL, *few)
    assert (code, out, len(err.strip().splitlines())) == (1, "", 1)


def test_a_reply_without_a_finish_reason_is_no_answer(evaluated, server):
    server.finish = None
    code, _, err = evaluated(*setting("engine.runtime.max_retries", 1))
    assert (code, "the stream was cut" in err) == (1, True)
