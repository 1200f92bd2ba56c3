"""Nobody but its trainer gets an answer of a stage's vLLM server, whatever it asks for."""

import importlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient
from trl.trainer.grpo_trainer import GRPOTrainer

from training.gppo_config import GPPOConfig
from training.gppo_trainer import GPPOTrainer
from training.own_vllm import URL, is_up
from training.server_client import PolicyClient
from training.server_token import REQUIRE, TOKEN, RequireToken, header

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


def paths(app: Any) -> list[tuple[str, str]]:
    """(method, path) of all that the application answers, websockets left out."""
    below = [(r, getattr(r, "methods", None)) for r in app.routes]
    return [(method, r.path) for r, methods in below for method in methods or ["GET"]]


def test_every_path_of_vllm_asks_for_the_token(app: Any) -> None:
    client = TestClient(app, raise_server_exceptions=False)
    asked = paths(app)
    known = {path for _, path in asked}
    # vLLM's own key guards /v1 alone; these read and change the policy
    assert {"/health", "/v1/models", "/collective_rpc", "/server_info", "/metrics"} <= known
    for method, path in [*asked, ("OPTIONS", "/collective_rpc"), ("GET", "/unknown")]:
        for wrong in WRONG:
            assert client.request(method, path, headers=wrong).status_code == 401, (method, path)
    assert client.get("/version", headers=header(RIGHT)).status_code == 200
    assert client.get("/unknown", headers=header(RIGHT)).status_code == 404


def test_a_refusal_says_nothing_of_the_token(app: Any) -> None:
    refused = TestClient(app).get("/server_info")
    assert RIGHT not in refused.text + str(refused.headers)


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
    module, _, name = REQUIRE.rpartition(".")
    with pytest.raises(RuntimeError, match=f"{TOKEN} is not set"):
        getattr(importlib.import_module(module), name)(None)


class Server:
    """Answers what a trainer asks first, to the token only; `seen` are the credentials sent."""

    def __init__(self, token: str) -> None:
        self.seen: list[str | None] = []
        seen = self.seen

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers["Authorization"]
                seen.append(given)
                good = not token or given == f"Bearer {token}"
                text = json.dumps({"data": [{"id": "m"}], "vllm_config": {"instance_id": "a"}})
                self.send_response(200 if good else 401)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever).start()

    def end(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """The stage's server, as its trainer is told of it; ~/.netrc knows another password."""
    server = Server(RIGHT)
    for name, value in ((URL, server.url), (TOKEN, RIGHT), ("NO_PROXY", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    yield server
    server.end()


def test_the_trainers_client_shows_the_token_from_its_first_question_on(own: Server) -> None:
    client = PolicyClient(base_url=own.url)
    assert client.model == "m"
    assert client.get_server_info() == {"instance_id": "a"}
    assert own.seen == [f"Bearer {RIGHT}"] * 3  # is it well, what does it serve, who is it
    assert RIGHT not in repr(vars(client))
    assert is_up(own.url, "m", RIGHT)
    assert not is_up(own.url, "m")


def test_a_server_that_the_settings_name_never_sees_the_token(
    own: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NETRC")
    another = Server("")
    try:
        assert PolicyClient(base_url=another.url).model == "m"
        assert another.seen == [None, None]
    finally:
        another.end()


def test_a_port_of_another_program_is_named(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "of another start")
    with pytest.raises(PermissionError, match="answers 401 to its own trainer") as refused:
        PolicyClient(base_url=own.url)
    assert "of another start" not in str(refused.value)


class Built(Exception):
    """TRL's trainer would make its client now."""


def test_trl_makes_our_client_while_a_trainer_is_built_and_its_own_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trl: Any = vllm_generation
    found = []

    def build(*_: Any, **__: Any) -> None:
        found.append(trl.VLLMClient)
        raise Built

    monkeypatch.setattr(GRPOTrainer, "__init__", build)
    with pytest.raises(Built):
        GPPOTrainer("a model", args=GPPOConfig(str(tmp_path), bf16=False), train_dataset=[])
    assert found == [PolicyClient]
    assert trl.VLLMClient is VLLMClient
