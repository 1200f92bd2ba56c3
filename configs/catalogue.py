"""The public sources this project knows how to read, by name: configs/catalogue.toml."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.toml")


@cache
def catalogue() -> dict[str, dict[str, Any]]:
    """name → the keys of a `Source`."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
