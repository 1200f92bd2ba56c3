"""Texts as unit vectors: by an encoder in this process, or by an endpoint's `/v1/embeddings`."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import openai
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel

from ..models import NO_CODE, WEIGHTS, load_tokenizer, positions_of
from .endpoint import NO_KEY
from .interface import EngineError

Embed = Callable[[Sequence[str]], np.ndarray]  # texts → unit rows, float32 [N, D]
MOST_TOKENS = 512  # of a text: a longer one is compared by its beginning
TEXTS_AT_ONCE, REQUESTS_AT_ONCE, RETRIES = 64, 8, 20
KEY = "OPENAI_API_KEY"
FEWEST_CHARACTERS = 200  # a text this short is refused for another reason than its length
POOLING = "1_Pooling/config.json"  # of sentence-transformers: how the vectors become one
FILES = ("*.json", "*.safetensors", "*.txt", "*.model")


def local_encoder(model: str) -> Embed:
    """Unit vectors: means of the last hidden states over a text's tokens; on the GPU if there is
    one. `model` is a folder or a hub id, also `id@commit`. Raises EngineError."""
    try:
        folder, (name, _, commit) = model, model.partition("@")
        if not Path(model).is_dir():
            folder = snapshot_download(name, revision=commit or None, allow_patterns=list(FILES))
        config: Any = AutoConfig.from_pretrained(folder, **NO_CODE)
        tokenizer: Any = load_tokenizer(folder)
        encoder: Any = AutoModel.from_pretrained(folder, dtype="auto", **WEIGHTS).eval()
    except (OSError, ValueError, HfHubHTTPError) as error:
        first = str(error).strip().splitlines()[0]
        raise EngineError(f"the encoder {model} cannot be loaded: {first}") from error
    pooling = Path(folder) / POOLING
    if pooling.exists() and not json.loads(pooling.read_text()).get("pooling_mode_mean_tokens"):
        served = "serve it (vLLM: --runner pooling) and name its address with --embed-url"
        raise EngineError(f"the encoder {model} does not take the mean of its tokens: {served}")
    if torch.cuda.is_available():
        encoder = encoder.cuda()
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "right"
    most = min(MOST_TOKENS, positions_of(config) or MOST_TOKENS, tokenizer.model_max_length)

    @torch.inference_mode()
    def embed(texts: Sequence[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # like lengths pad least
        vectors = np.zeros((len(texts), config.hidden_size), np.float32)
        for start in range(0, len(order), TEXTS_AT_ONCE):
            some = order[start : start + TEXTS_AT_ONCE]
            tokens = tokenizer([texts[i] for i in some], padding=True, truncation=True,
                               max_length=most, return_tensors="pt").to(encoder.device)  # fmt: skip
            hidden = encoder(**tokens).last_hidden_state.float()  # [B, T, D]
            mask = tokens["attention_mask"][:, :, None].float()
            vectors[some] = normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).cpu()
        return vectors

    return embed


def endpoint_encoder(url: str, model: str) -> Embed:
    """The vectors of any OpenAI-compatible server. A text that it refuses as too long is asked for
    by its beginning, half as long. Raises EngineError that names the address and the reason."""
    key = environ.get(KEY, "") or NO_KEY
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=RETRIES)

    def ask(texts: Sequence[str]) -> list[list[float]]:
        try:
            request = {"model": model, "input": list(texts)}
            reply = client.embeddings.create(**request, encoding_format="float")
        except openai.OpenAIError as error:
            refused = isinstance(error, openai.BadRequestError)
            if refused and len(texts) > 1:
                return [vector for text in texts for vector in ask([text])]
            if refused and len(texts[0]) > FEWEST_CHARACTERS:
                return ask([texts[0][: len(texts[0]) // 2]])
            message = str(error).partition("\n")[0][:300].replace(key, "***")
            raise EngineError(f"{url}: {message}") from None
        vectors = [entry.embedding for entry in sorted(reply.data, key=lambda entry: entry.index)]
        if len(vectors) != len(texts):
            raise EngineError(f"{url}: {len(vectors)} vectors for {len(texts)} texts")
        return vectors

    def embed(texts: Sequence[str]) -> np.ndarray:
        batches = [texts[i : i + TEXTS_AT_ONCE] for i in range(0, len(texts), TEXTS_AT_ONCE)]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            vectors = np.array([v for some in pool.map(ask, batches) for v in some], np.float32)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise EngineError(f"{url}: {model} gives vectors without a direction (zeros or NaN)")
        return vectors / lengths

    return embed
