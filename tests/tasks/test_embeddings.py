from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from configs.settings.data import EmbeddingRuntime, EmbeddingSettings
from tasks.answers.embeddings import GRID, embed

PROMPTS = ["circle area radius", "prime divisor", "graph edge", "radius, Circle: area!", "$", ""]


def test_prompts_of_the_same_words_are_the_same_point(tmp_path: Path):
    points = embed(PROMPTS, EmbeddingSettings(), 0, tmp_path)
    assert np.array_equal(points[0], points[3])
    assert len(np.unique(points, axis=0)) == len(PROMPTS) - 1
    assert points.dtype == np.float32
    assert np.array_equal(points, np.round(points / GRID) * GRID)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-4)


def test_dimensions_bound_the_vectors(tmp_path: Path):
    assert embed(PROMPTS, EmbeddingSettings(dimensions=2), 0, tmp_path).shape == (6, 2)
    assert embed(["one prompt"] * 2, EmbeddingSettings(), 0, tmp_path).shape[0] == 2


def test_a_model_and_its_kind_go_together():
    with pytest.raises(ValueError, match="kind transformers and model go together"):
        EmbeddingSettings(kind="transformers")
    with pytest.raises(ValueError, match="kind transformers and model go together"):
        EmbeddingSettings(model="some/model")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = ["[PAD]", "[UNK]", "circle", "area", "radius", "prime", "divisor", "graph", "edge"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    fast.save_pretrained(tmp_path / "model")
    BertModel(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_embeds_in_a_process_of_its_own(tmp_path: Path, model: Path):
    runtime = EmbeddingRuntime(dtype="float32")
    chosen = EmbeddingSettings(kind="transformers", model=str(model), runtime=runtime)
    points = embed(["circle area", "prime", "circle area"], chosen, 0, tmp_path / "out")
    assert points.shape == (3, 16)
    assert np.array_equal(points[0], points[2])
    assert not np.array_equal(points[0], points[1])
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-4)
