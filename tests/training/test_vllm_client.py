"""RL's vLLM server: a trainer without CUDA takes none that cannot take its weights, and no rollout
of one that was started again is trained on."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import torch

from training.rl.vllm_sampler import PolicyClient, ServerLost
from training.rl.vllm_weights import EXTENSION, PolicyWeights


class Stub:
    """What a trainer asks of a server first; without `info` it is as outside of vLLM's development
    mode."""

    def __init__(self, info: dict[str, Any] | None) -> None:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = info is not None or not self.path.startswith("/server_info")
                text = json.dumps({"data": [{"id": "m"}], "vllm_config": info}).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@contextmanager
def serving(info: dict[str, Any] | None = None) -> Iterator[Stub]:
    stub = Stub(info)
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
