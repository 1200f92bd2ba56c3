"""Public datasets that lie beside the repository, in ../shared/data: who needs one is skipped where
it is missing."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "shared" / "data"


@cache
def shared_rows(name: str) -> list[dict[str, Any]]:
    """Of `name`.jsonl.gz."""
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"needs ../shared/data/{name}.jsonl.gz")
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]
