"""Which vLLM a trainer without CUDA accepts, and what it says to the others."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.vllm_worker import EXTENSION, PolicyWeights, repack_tied_head

pay = [1.0, 0.0]


@contextmanager
def server(info: dict[str, Any] | None) -> Iterator[str]:
    """What a trainer asks of `vllm serve` when it starts; without `info` as outside of its
    development mode."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body: Any = {"data": [{"id": "m"}]}
            if self.path.startswith("/server_info"):
                body = {"vllm_config": info} if info else None
            text = json.dumps(body or {}).encode()
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_address[1]}"
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def trainer_of(make_trainer, url: str) -> Any:
    return make_trainer(
        lambda completions, **_: pay * (len(completions) // 2),
        use_vllm=True, vllm_mode="server", vllm_server_base_url=url,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize("info", [None, {"parallel_config": {"worker_extension_cls": ""}}])
def test_a_server_that_cannot_take_weights_is_refused_with_the_command_for_one_that_can(
    make_trainer, info
):
    with server(info) as url, pytest.raises(ValueError, match=r"takes? no weights") as refused:
        trainer_of(make_trainer, url)
    for word in (url, "VLLM_SERVER_DEV_MODE=1 vllm serve", f"--worker-extension-cls {EXTENSION}"):
        assert word in str(refused.value)


def test_a_server_with_our_extension_is_accepted_and_sampled_from(make_trainer):
    with server({"parallel_config": {"worker_extension_cls": EXTENSION}}) as url:
        trainer = trainer_of(make_trainer, url)
        assert trainer.use_vllm
        assert trainer.vllm_generation.vllm_client.base_url == url
        assert trainer.vllm_generation.max_completion_length == 12


def test_tensor_parallel_sampling_beside_the_trainer_needs_cuda(make_trainer):
    with pytest.raises(ValueError, match=r"vllm_tensor_parallel_size=2: without CUDA"):
        make_trainer(lambda **_: pay, use_vllm=True, vllm_tensor_parallel_size=2)


def test_the_worker_loads_the_policy_then_packs_a_tied_head_anew():
    embedding = SimpleNamespace(weight=torch.zeros(1))
    packed = []

    def model(weight, **more):
        method = SimpleNamespace(process_weights_after_loading=packed.append)
        head = SimpleNamespace(weight=weight, quant_method=method, **more)
        return SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding))

    tied = model(embedding.weight, cpu_linear=len)
    calls = []

    class Worker(PolicyWeights):
        model_runner = SimpleNamespace(get_model=lambda: tied)

        def reload_weights(self, **given):
            calls.append((given, list(packed)))

    Worker().take_policy(weights_path="folder")
    assert calls == [({"weights_path": "folder", "weights_iterator": None}, [])]
    assert packed == [tied.lm_head]
    repack_tied_head(model(torch.zeros(1), cpu_linear=len))  # has weights of its own
    repack_tied_head(model(embedding.weight))  # a GPU computes with the weights themselves
    assert packed == [tied.lm_head]
