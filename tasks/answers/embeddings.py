"""Prompts as unit vectors, for K-Center-Greedy: TF-IDF of words, or a model's hidden states."""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.settings.data import EmbeddingSettings
from tasks.data.words import alnum_words
from tasks.stage.child import run_command
from training.engines.embeddings import EmbedJob

GRID = 2.0**-20


def embed(prompts: list[str], settings: EmbeddingSettings, seed: int, out: Path) -> np.ndarray:
    """Unit vectors [N, d] float32 of `prompts`; a model leaves its files and log below `out`.

    Coordinates are rounded to multiples of 2⁻²⁰. What linear algebra libraries and their threads
    change in the last bits is gone then, and prompts of the same words are the same point.
    Raises tasks.stage.child.ChildFailed where a model cannot be loaded.
    """
    if settings.kind == "transformers":
        vectors = _by_model(prompts, settings, out)
    else:
        vectors = tfidf_svd(prompts, settings.dimensions, seed)
    return np.asarray(np.round(vectors / GRID) * GRID, np.float32)


def tfidf_svd(prompts: list[str], dimensions: int, seed: int) -> np.ndarray:
    """TF-IDF of words and numbers, reduced by truncated SVD to [N, ≤ dimensions], unit length."""
    # Slow to import, and only sized subsets need it.
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    vectoriser = TfidfVectorizer(analyzer=_terms, sublinear_tf=True)  # pyright: ignore
    weights = vectoriser.fit_transform(prompts)
    dimensions = min(dimensions, min(weights.shape) - 1)
    if dimensions < 1:
        return weights.toarray()
    with np.errstate(invalid="ignore"):  # equal prompts have no variance to be explained
        reduced = TruncatedSVD(dimensions, random_state=seed).fit_transform(weights)
    return np.asarray(normalize(reduced))


def _terms(text: str) -> list[str]:
    return alnum_words(text) or [text]


def _by_model(prompts: list[str], settings: EmbeddingSettings, out: Path) -> np.ndarray:
    """In a process of its own, which resumes at the batches that an earlier run finished."""
    out.mkdir(parents=True, exist_ok=True)
    table = pa.table({"prompt": pa.array(prompts, pa.large_string())})
    pq.write_table(table, out / "prompts.parquet", row_group_size=1024)
    job = EmbedJob(folder=out, settings=settings)
    (out / "job.json").write_text(job.model_dump_json())
    command = [sys.executable, "-P", "-m", "training.engines.embeddings", str(out / "job.json")]
    run_command(command, out)
    names = json.loads((out / "parts.json").read_text())
    return np.concatenate([np.load(out / name) for name in names])
