"""Sizes of a model, from its settings or from its config: what memory and FLOPs are counted by.

Needs no torch and no download: for the Qwen3 family the sizes are known by name.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.settings.training import BaseModelSettings


@dataclass(frozen=True)
class ModelFacts:
    """A dense decoder of the Qwen3 architecture: grouped-query attention with q/k norms, SwiGLU."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """The output head is the embedding."""

    @property
    def layer_parameters(self) -> int:
        """q and o: h·H·d each; k and v: h·KV·d each; gate, up, down: h·f each; 2 norms of h, 2 of
        d. Qwen3-8B: 192,946,432."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + 2 * self.head_dim
        return attention + 3 * self.hidden * self.mlp + norms

    @property
    def outer_parameters(self) -> int:
        """Embedding and head, V·h each (once where they are tied), and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters. Qwen3-8B: 36 · 192,946,432 + 1,244,663,808 = 8,190,735,360."""
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def matrix_parameters(self) -> int:
        """Of the linear layers inside the decoder (what Muon trains), without norms."""
        norms = 2 * self.hidden + 2 * self.head_dim
        return self.layers * (self.layer_parameters - norms)

    def kv_bytes_per_token(self, bytes_each: int = 2, tensor_parallel: int = 1) -> int:
        """Keys and values of one token on one GPU: 2 · layers · KV · d · bytes, the heads shared
        by `tensor_parallel` GPUs (at least one each). Qwen3-8B: 2·36·8·128·2 = 147,456."""
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * bytes_each


def _qwen3(layers: int, hidden: int, mlp: int, heads: int, *, tied: bool) -> ModelFacts:
    return ModelFacts(layers, hidden, mlp, heads, 8, 128, 151_936, tied)


KNOWN = {  # config.json of Qwen/Qwen3-*, the same for the -Base models
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 17408, 40, tied=False),
    "Qwen/Qwen3-32B": _qwen3(64, 5120, 25600, 64, tied=False),
}


def facts_of_model(model: str) -> ModelFacts | None:
    """Of a hub id or a local folder; None where neither the name nor a config.json tells."""
    if known := KNOWN.get(model.removesuffix("-Base")):
        return known
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text())
        return facts_of_config(config)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def facts_of_config(config: dict[str, Any]) -> ModelFacts:
    """Of a transformers `config.json`; raises KeyError where it has no such sizes."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ModelFacts(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        mlp=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
    )


def facts_of_base(s: BaseModelSettings) -> ModelFacts | None:
    """Of the model that training starts from."""
    if s.kind == "pretrained":
        return facts_of_model(s.model)
    vocabulary = -(-s.vocabulary // 16) * 16  # as training.checkpoints.base pads it
    return ModelFacts(
        s.layers, s.hidden, s.mlp, s.heads, s.kv_heads, s.head_dim, vocabulary, tied=True
    )
