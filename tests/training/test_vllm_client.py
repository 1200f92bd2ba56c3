"""A stage's vLLM server: nobody but its trainer gets an answer, a trainer without CUDA takes no
server that cannot take its weights, and no rollout of one that was started again is trained on."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from training.vllm.sampler import PolicyClient, ServerLost
from training.vllm.server import EXTENSION, REQUIRE, TOKEN, URL, PolicyWeights, RequireToken, header

RIGHT = "the-token-of-this-start"
WRONG = [{}, header("another"), {"Authorization": RIGHT}, {"Authorization": f"Basic {RIGHT}"}]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's own application with our middleware, in development mode, without an engine."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv(TOKEN, RIGHT)
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser())
    asked: Any = parser.parse_args(["--middleware", REQUIRE])
    return build_app(asked, ("generate",))


def test_every_path_of_vllm_asks_for_the_token(app: Any) -> None:
    client = TestClient(app, raise_server_exceptions=False)
    below = [(r, getattr(r, "methods", None) or ["GET"]) for r in app.routes]
    asked = [(method, r.path) for r, methods in below for method in methods]
    # vLLM's own key guards /v1 alone; these read and change the policy
    assert {"/health", "/v1/models", "/collective_rpc", "/server_info", "/metrics"} <= {
        path for _, path in asked
    }
    for method, path in [*asked, ("OPTIONS", "/collective_rpc"), ("GET", "/unknown")]:
        for wrong in WRONG:
            refused = client.request(method, path, headers=wrong)
            assert refused.status_code == 401, (method, path)
            assert RIGHT not in refused.text + str(refused.headers)
    assert client.get("/version", headers=header(RIGHT)).status_code == 200
    assert client.get("/unknown", headers=header(RIGHT)).status_code == 404


def test_a_websocket_without_the_token_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, RIGHT)

    async def greet(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})

    client = TestClient(RequireToken(greet))
    with client.websocket_connect("/v1/realtime", headers=header(RIGHT)) as open_one:
        assert open_one.receive_text() == "hello"
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
        pass


def test_a_server_without_a_token_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    app: Any = None
    with pytest.raises(RuntimeError, match=f"{TOKEN} is not set"):
        RequireToken(app)


class Stub:
    """What a trainer asks of a server first, answered to `token` only; `seen`: credentials sent.

    Without `info` it is as outside of vLLM's development mode.
    """

    def __init__(self, token: str, info: dict[str, Any] | None) -> None:
        self.seen: list[str | None] = []
        stub = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers["Authorization"]
                stub.seen.append(given)
                known = info is not None or not self.path.startswith("/server_info")
                good = not token or given == f"Bearer {token}"
                text = json.dumps({"data": [{"id": "m"}], "vllm_config": info}).encode()
                self.send_response(401 if not good else 200 if known else 404)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@contextmanager
def serving(token: str = "", info: dict[str, Any] | None = None) -> Iterator[Stub]:
    stub = Stub(token, info)
    thread = threading.Thread(target=stub.http.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield stub
    finally:
        stub.http.shutdown()
        thread.join()
        stub.http.server_close()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    """The stage's server, as its trainer is told of it; ~/.netrc knows another password."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    with serving(RIGHT, {"instance_id": "a"}) as stub:
        for name, value in ((URL, stub.url), (TOKEN, RIGHT), ("NETRC", str(netrc))):
            monkeypatch.setenv(name, value)
        yield stub


def test_the_trainers_client_shows_the_token_from_its_first_question_on(own: Stub) -> None:
    client = PolicyClient(base_url=own.url)
    assert client.model == "m"
    assert client.get_server_info() == {"instance_id": "a"}
    assert own.seen == [f"Bearer {RIGHT}"] * 3  # is it well, what does it serve, who is it
    assert RIGHT not in repr(vars(client))


def test_a_server_that_the_settings_name_never_sees_the_token(
    own: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NETRC")
    with serving() as another:
        assert PolicyClient(base_url=another.url).model == "m"
        assert another.seen == [None, None]


def test_a_port_of_another_program_is_named(own: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "of another start")
    with pytest.raises(PermissionError, match="answers 401 to its own trainer") as refused:
        PolicyClient(base_url=own.url)
    assert "of another start" not in str(refused.value)


class Restarted(PolicyClient):
    """The client of a server; `starts` are what it says of itself, one a question."""

    base_url = "http://127.0.0.1:8000"

    def __init__(self, *starts: str | Exception) -> None:
        self.starts = list(starts)

    def get_server_info(self) -> dict[str, str]:
        found = self.starts.pop(0)
        if isinstance(found, Exception):
            raise found
        return {"instance_id": found}


def rollouts(client: Restarted, count: int, broken: Exception | None = None) -> int:
    """How many were sampled and may be trained on."""
    done = 0
    for _ in range(count):
        with client.same_server():
            if broken:
                raise broken
        done += 1
    return done


@pytest.mark.parametrize("starts", [("a", "b"), ("a", "a", "b")])
def test_a_server_that_was_started_again_ends_the_stage(starts: tuple[str, ...]) -> None:
    assert rollouts(Restarted("a", "a", "a", "a"), 2) == 2
    with pytest.raises(ServerLost, match="was started again and has lost the policy; run again"):
        rollouts(Restarted(*starts), 2)


@pytest.mark.parametrize(
    "error", [requests.ConnectionError("refused"), requests.exceptions.RetryError("HTTP 500")]
)
def test_a_server_that_is_gone_is_named_with_what_to_do(error: Exception) -> None:
    for client, broken in ((Restarted(error), None), (Restarted("a"), error)):
        with pytest.raises(ServerLost, match=r":8000 does not answer any more .* run again"):
            rollouts(client, 1, broken)
    with pytest.raises(ValueError, match="no prompts"):  # another reason stays what it is
        rollouts(Restarted("a"), 1, ValueError("no prompts"))


def served_by(make_trainer: Callable[..., Any], **options: Any) -> Any:
    return make_trainer(
        lambda completions, **_: [1.0, 0.0] * (len(completions) // 2), use_vllm=True, **options
    )


@pytest.mark.parametrize("info", [None, {"parallel_config": {"worker_extension_cls": ""}}])
def test_a_server_that_cannot_take_weights_is_refused_with_the_command_for_one_that_can(
    make_trainer, info
) -> None:
    with serving(info=info) as stub, pytest.raises(ValueError, match="take no weights") as refused:
        served_by(make_trainer, vllm_mode="server", vllm_server_base_url=stub.url)
    for word in (stub.url, "DEV_MODE=1 vllm serve", f"--worker-extension-cls {EXTENSION}"):
        assert word in str(refused.value)


def test_a_server_with_our_extension_is_accepted_and_sampled_from(make_trainer) -> None:
    with serving(info={"parallel_config": {"worker_extension_cls": EXTENSION}}) as stub:
        trainer = served_by(make_trainer, vllm_mode="server", vllm_server_base_url=stub.url)
        assert trainer.use_vllm
        assert trainer.vllm_generation.vllm_client.base_url == stub.url
        assert trainer.vllm_generation.max_completion_length == 12


def test_the_worker_loads_the_policy_then_packs_a_tied_head_anew() -> None:
    embedding = SimpleNamespace(weight=torch.zeros(1))
    done: list[Any] = []

    def loaded(weight: torch.Tensor, **more: Any) -> Any:
        """The model of a worker that has taken a policy."""
        method = SimpleNamespace(process_weights_after_loading=done.append)
        head = SimpleNamespace(weight=weight, quant_method=method, **more)
        model = SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding))

        class Worker(PolicyWeights):
            model_runner = SimpleNamespace(get_model=lambda: model)

            def reload_weights(self, **given: Any) -> None:
                done.append(given)

        Worker().take_policy(weights_path="folder")
        return model

    given = {"weights_path": "folder", "weights_iterator": None}
    tied = loaded(embedding.weight, cpu_linear=len)
    assert done == [given, tied.lm_head]
    loaded(torch.zeros(1), cpu_linear=len)  # has weights of its own
    loaded(embedding.weight)  # a GPU computes with the weights themselves
    assert done[2:] == [given, given]
