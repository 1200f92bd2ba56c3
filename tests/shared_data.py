"""Public datasets: those of ../shared/data where they lie beside the repository, else the sample in
tests/data, which has their columns. Who needs more than the sample is skipped without them."""

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parent / "data"
LARGE = Path(__file__).parents[2] / "shared" / "data"
DATA = LARGE if LARGE.is_dir() and not os.environ.get("SAMPLE_ONLY") else SAMPLE


@cache
def shared_rows(name: str) -> list[dict[str, Any]]:
    """Of `name`.jsonl.gz."""
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{name}.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]
