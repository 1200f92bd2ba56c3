from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from configs.settings.data import EmbeddingRuntime, EmbeddingSettings
from training.engines.embeddings import Embedder, EmbedJob, run_embed

TEXTS = ["Make 24 from 1, 2, 3.", "Make 7.", "What is 2 + 2? " * 10, "Make 7.", "x"]


def settings(files: dict[str, Path], **chosen) -> EmbeddingSettings:
    runtime = EmbeddingRuntime(batch_size=2, dtype="float32")
    return EmbeddingSettings(
        kind="transformers", model=str(files["checkpoint"]), runtime=runtime, **chosen
    )


def alone(files: dict[str, Path], text: str, max_tokens: int = 512) -> np.ndarray:
    """The mean of the last hidden states of one text, without padding, scaled to length 1."""
    tokenizer = AutoTokenizer.from_pretrained(files["checkpoint"])
    model = AutoModel.from_pretrained(files["checkpoint"], dtype=torch.float32)
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :max_tokens]
    with torch.inference_mode():
        mean = model(ids).last_hidden_state[0].mean(dim=0).numpy()
    return mean / np.linalg.norm(mean)


def test_a_text_is_embedded_alike_whatever_shares_its_batch_and_a_long_one_is_cut(
    files: dict[str, Path],
):
    vectors = Embedder(settings(files)).embed(TEXTS)
    expected = np.stack([alone(files, text) for text in TEXTS])
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    cut = Embedder(settings(files, max_tokens=3)).embed(TEXTS)
    np.testing.assert_allclose(cut[2], alone(files, TEXTS[2], max_tokens=3), atol=1e-5)


def test_a_second_run_computes_only_the_parts_that_are_missing(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pq.write_table(pa.table({"prompt": TEXTS}), tmp_path / "prompts.parquet", row_group_size=2)
    job = EmbedJob(folder=tmp_path, settings=settings(files))
    run_embed(job)
    parts = sorted(tmp_path.glob("embedded-*.npy"))
    before = [np.load(part) for part in parts]
    whole = Embedder(job.settings).embed(TEXTS)
    np.testing.assert_allclose(np.concatenate(before), whole, atol=1e-5)
    parts[1].unlink()
    real, asked = Embedder.embed, []
    monkeypatch.setattr(Embedder, "embed", lambda *a: (asked.append(a[1]), real(*a))[1])
    run_embed(job)
    assert asked == [TEXTS[2:4]]
    assert np.array_equal(np.load(parts[1]), before[1])
