"""Which side of a family a problem belongs to, decided by its content alone.

Training and benchmark problems of a generated family come from one endless stream. A stable hash
puts each on one side for ever, so no seed and no size can leak a benchmark problem into training.
"""

import hashlib
from typing import Literal

Side = Literal["train", "test"]
TEST_SHARE = 0.15


def side_of(key: str) -> Side:
    """Side of the problem whose canonical text is `key`: about 15 % of all keys are `test`."""
    digest = hashlib.sha256(key.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64 else "train"
