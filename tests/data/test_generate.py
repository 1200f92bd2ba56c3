"""The sample beside this file is what its script makes."""

import gzip
import json

from tests.data.generate import sample
from tests.shared_data import SAMPLE


def test_the_files_hold_the_rows_that_the_script_makes() -> None:
    committed = {
        str(path.relative_to(SAMPLE)).removesuffix(".jsonl.gz"): [
            json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()
        ]
        for path in SAMPLE.rglob("*.jsonl.gz")
    }
    assert committed == sample()
