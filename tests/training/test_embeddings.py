"""Texts as unit vectors: a small encoder made from a seed, and an endpoint on loopback."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from aiohttp import web
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, BertTokenizer

from klear.training.engines.embeddings import POOLING, endpoint_encoder, local_encoder
from klear.training.engines.interface import EngineError
from tests.endpoint.conftest import serving_routes

TEXT = "how many rooks stand on a board find the sum of all digits"
TEXTS = ["how many rooks", "find the sum of all digits on a board", "the sum"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers whose weights come from seed 0, with a tokenizer of few words."""
    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *TEXT.split()])}
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=12,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("encoder")
    BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder


def test_a_vector_is_the_mean_of_its_own_tokens_whatever_stands_beside_it(encoder: Path) -> None:
    """A text longer than the positions is compared by its beginning: ten of its words fit between
    the two special tokens of twelve positions."""
    *vectors, long, cut = local_encoder(str(encoder))([*TEXTS, "sum " * 50, "sum " * 10])
    model, tokenizer = AutoModel.from_pretrained(encoder), AutoTokenizer.from_pretrained(encoder)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
    np.testing.assert_allclose(long, cut, atol=1e-6)


def test_a_folder_that_pools_in_another_way_or_has_no_model_is_refused(encoder, tmp_path) -> None:
    folder = shutil.copytree(encoder, tmp_path / "encoder")
    (folder / POOLING).parent.mkdir()
    (folder / POOLING).write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(EngineError, match="not take the mean of its tokens: serve it"):
        local_encoder(str(folder))
    with pytest.raises(EngineError, match=f"the encoder {tmp_path} cannot be loaded"):
        local_encoder(str(tmp_path))


Answer = Callable[[list[str]], tuple[int, dict[str, Any]]]


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[Any]]]:
    """The address of `/v1` on loopback, and what was asked there: path, key and body."""
    bodies: list[Any] = []

    async def embed(request: web.Request) -> web.Response:
        body = await request.json()
        bodies.append((request.path, request.headers["authorization"], body))
        status, reply = answer(body["input"])
        return web.json_response(reply, status=status)

    with serving_routes([web.post("/v1/embeddings", embed)]) as url:
        yield url, bodies


def vectors(texts: list[str]) -> tuple[int, dict[str, Any]]:
    """(length, 1) of each text, the last first; a text of over 500 characters is too long."""
    if any(len(text) > 500 for text in texts):
        return 400, {"error": {"message": "too many tokens"}}
    data = [{"object": "embedding", "index": i, "embedding": [len(text), 1.0]}
            for i, text in enumerate(texts)]  # fmt: skip
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return 200, {"object": "list", "model": "m", "data": data[::-1], "usage": usage}


def test_an_endpoint_gives_unit_vectors_in_order_and_a_long_text_by_its_beginning(monkeypatch):
    """Of 900 characters the first 450 are taken, beside texts that keep their own vectors."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with serving(vectors) as (url, bodies):
        rows = endpoint_encoder(url, "bge-m3")(["abc", "x" * 900, "abcd"])
    expected = np.array([[3, 1], [450, 1], [4, 1]], float)
    np.testing.assert_allclose(rows, expected / np.linalg.norm(expected, axis=1)[:, None], 1e-6)
    path, key, body = bodies[0]
    assert (path, key, body["model"]) == ("/v1/embeddings", "Bearer sk-secret", "bge-m3")


def test_an_endpoint_that_gives_no_vector_is_an_error_with_the_reason(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    replies = [
        (401, {"error": {"message": "bad key sk-secret"}}, r"/v1: .*bad key \*\*\*"),
        (400, {"error": {"message": "no such model"}}, "/v1: .*no such model"),
        (200, {"data": [{"index": 0, "embedding": [0.0, 0.0]}]}, "zeros or NaN"),
        (200, {"data": []}, "(0 vectors for 1 texts|No embedding data)"),
    ]
    with serving(lambda _: (status, reply)) as (url, _):
        for status, reply, message in replies:  # noqa: B007
            with pytest.raises(EngineError, match=message) as error:
                endpoint_encoder(url, "m")(["abc"])
            assert "sk-secret" not in str(error.value)
