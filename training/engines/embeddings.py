"""`python -m training.engines.embeddings JOB.json`: texts as the averaged hidden states of a model.

Reads `folder/prompts.parquet` and writes one `embedded-NUMBER.npy` of unit vectors a row group. A
second run of the same job computes what is missing.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from configs.settings.base import Settings
from configs.settings.data import EmbeddingSettings
from training.checkpoints.safe_loading import NO_CODE, WEIGHTS
from training.layout import ProgressFile


class EmbedJob(Settings):
    """Embed `folder/prompts.parquet`; progress goes there too."""

    folder: Path
    settings: EmbeddingSettings


class Embedder:
    """A model with its tokenizer, on the GPU if there is one."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.settings = settings
        where: dict[str, Any] = {"revision": settings.revision}
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(settings.model, **where, **NO_CODE)
            model: Any = AutoModel.from_pretrained(
                settings.model, dtype=settings.runtime.dtype, **where, **WEIGHTS
            )
        except (OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise ValueError(f"embedding model={settings.model} cannot be loaded: {why}") from error
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = model.eval().to("cuda" if torch.cuda.is_available() else "cpu")

    def embed(self, texts: list[str]) -> np.ndarray:
        """Unit vectors [len(texts), hidden] float32, in the order of `texts`.

        Texts of like length share a batch, the longest first: what does not fit fails soon.
        """
        import torch

        result = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        size = self.settings.runtime.batch_size
        for start in range(0, len(order), size):
            rows = order[start : start + size]
            batch = self.tokenizer(
                [texts[i] for i in rows],
                return_tensors="pt",
                padding=True,
                truncation=True,
                max_length=self.settings.max_tokens,
            ).to(self.model.device)
            with torch.inference_mode():
                hidden = self.model(**batch).last_hidden_state.float()
                mask = batch["attention_mask"].unsqueeze(-1).float()
                mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
                result[rows] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
        return result


def run_embed(job: EmbedJob) -> None:
    """Embed what is missing, row group by row group; each is renamed into place when done."""
    progress = ProgressFile(job.folder)
    with pq.ParquetFile(job.folder / "prompts.parquet") as file:
        embedder: Embedder | None = None
        for number in range(file.num_row_groups):
            path = job.folder / f"embedded-{number:06d}.npy"
            if not path.exists():
                embedder = embedder or Embedder(job.settings)
                texts = file.read_row_group(number).column("prompt").to_pylist()
                partial = job.folder / "partial.npy"
                np.save(partial, embedder.embed(texts))
                os.replace(partial, path)
            progress.report(number + 1, file.num_row_groups, "embeddings")


if __name__ == "__main__":
    run_embed(EmbedJob.model_validate_json(Path(sys.argv[1]).read_text()))
