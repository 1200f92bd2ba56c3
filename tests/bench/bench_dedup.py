"""Near-duplicate removal, one core, against datasketch end to end; and exact removal.

    python tests/bench/bench_dedup.py [--rows N]

Rows: prompts of DeepScaleR, GSM8K, MATH and LiveCodeBench; words split at white space, 5-word
shingles, 128 permutations, Jaccard 0.7. The peer follows datasketch's documented use: shingles
encoded to bytes, `MinHash.bulk`, then query and insert one `MinHashLSH`; it keeps the first of
its candidates without verifying them, which ours does.
"""

import argparse
import gzip
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from datasketch import MinHash, MinHashLSH

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tasks.dedup import exact_duplicates  # noqa: E402
from tasks.near_duplicates import near_duplicates  # noqa: E402

DATA = ROOT.parent / "shared" / "data"
FILES = {
    "deepscaler/train.jsonl.gz": "problem",
    "gsm8k/train.jsonl.gz": "question",
    "math_train/train.jsonl.gz": "problem",
    "livecodebench/problems_v6.jsonl.gz": "question_content",
}
JACCARD, SHINGLE, PERMUTATIONS = 0.7, 5, 128
REPEATS = 2


def real_texts() -> list[str]:
    texts = []
    for name, field in FILES.items():
        with gzip.open(DATA / name, "rt") as lines:
            texts += [json.loads(line)[field] for line in lines]
    random.Random(0).shuffle(texts)
    return texts


def synthetic_texts() -> list[str]:
    """For machines without the data: random words, one text in ten a copy with a new last word."""
    chance = random.Random(0)
    texts: list[str] = []
    for i in range(40_000):
        if i % 10 == 9:
            texts.append(chance.choice(texts).rsplit(" ", 1)[0] + " changed")
        else:
            texts.append(" ".join(f"w{chance.randint(0, 9999)}" for _ in range(60)))
    return texts


def ours_near(texts: list[str]) -> set[int]:
    _, first = near_duplicates(texts, jaccard=JACCARD, shingle=SHINGLE, permutations=PERMUTATIONS)
    return {i for i, f in enumerate(first) if f != i}


def datasketch_near(texts: list[str]) -> set[int]:
    def shingles(text: str) -> set[bytes]:
        words = text.lower().split()
        last = max(len(words) - SHINGLE + 1, 1)
        return {" ".join(words[i : i + SHINGLE]).encode() for i in range(last)}

    lsh = MinHashLSH(threshold=JACCARD, num_perm=PERMUTATIONS)
    dropped: set[int] = set()
    sketches = MinHash.generator(map(shingles, texts), num_perm=PERMUTATIONS)
    for i, sketch in enumerate(sketches):
        if lsh.query(sketch):
            dropped.add(i)
        lsh.insert(i, sketch)
    return dropped


def cpu_seconds(work: Callable[[], object], repeats: int = REPEATS) -> tuple[float, object]:
    best, result = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        best = min(best, time.process_time() - began)
    return best, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="rows compared (0: all)")
    wanted = parser.parse_args().rows or None
    real = all((DATA / name).exists() for name in FILES)
    texts = (real_texts() if real else synthetic_texts())[:wanted]
    near, ours = cpu_seconds(lambda: ours_near(texts))
    peer, theirs = cpu_seconds(lambda: datasketch_near(texts), repeats=1)
    exact, same = cpu_seconds(lambda: exact_duplicates(texts))
    assert isinstance(ours, set)
    assert isinstance(theirs, set)
    assert isinstance(same, dict)
    print(f"dropped: ours {len(ours)} (verified), datasketch {len(theirs)} (unverified)")
    print(f"both: {len(ours & theirs)}; exact repeats: {len(same)}")
    print(f"exact removal: {len(texts) / exact:,.0f} rows/s")
    result = {
        "bench": "dedup",
        "ours": len(texts) / near,
        "peer": {"datasketch end to end": len(texts) / peer},
        "unit": "rows/s",
        "ratio": peer / near,
        "setup": f"{len(texts)} {'real' if real else 'synthetic'} prompts, 5-word shingles, "
        "128 permutations, Jaccard 0.7, near-duplicates verified exactly, CPU seconds",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
