"""K-Center-Greedy, 4,000 of DeepScaleR's prompts, one core, against plain numpy.

    python tests/bench/bench_k_center.py [--picks K]

Vectors: the default embedding (TF-IDF, SVD to 256 dimensions). Peer: the textbook loop, one
matrix-vector product a pick, |x|² + |p|² - 2xp in float64. Both must pick the same prompts.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"
ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
from real_documents import DATA, cpu_seconds  # noqa: E402

from configs.data_stages import EmbeddingSettings  # noqa: E402
from tasks.embeddings import embed  # noqa: E402
from tasks.k_center import k_center_greedy  # noqa: E402

FILE = DATA / "deepscaler" / "train.jsonl.gz"


def plain_numpy(points: np.ndarray, k: int) -> list[int]:
    points = points.astype(np.float64)
    norms = (points * points).sum(axis=1)
    nearest, picks = np.full(len(points), np.inf), [0]
    while len(picks) < k:
        pick = picks[-1]
        np.minimum(nearest, norms + norms[pick] - 2 * (points @ points[pick]), out=nearest)
        nearest[pick] = -1.0
        picks.append(int(nearest.argmax()))
    return picks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picks", type=int, default=4000)
    picks = parser.parse_args().picks
    if FILE.exists():
        kind = "DeepScaleR prompts"
        with gzip.open(FILE, "rt") as lines:
            prompts = list(dict.fromkeys(p for row in lines if (p := json.loads(row)["problem"])))
        with tempfile.TemporaryDirectory() as out:
            embedding, points = cpu_seconds(
                lambda: embed(prompts, EmbeddingSettings(), 0, Path(out))
            )
        print(f"embedding: {embedding:.1f} CPU s, {len(points) / embedding:,.0f} prompts/s")
    else:
        kind = "random unit vectors"
        points = np.random.default_rng(0).normal(size=(38_892, 256)).astype(np.float32)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    ours, centers = cpu_seconds(lambda: k_center_greedy(points, picks), repeats=2)
    peer, expected = cpu_seconds(lambda: plain_numpy(points, picks))
    if centers.picks != expected:
        raise SystemExit("the picks differ from plain numpy's")
    result = {
        "bench": "k_center",
        "ours": picks / ours,
        "peer": {"plain numpy": picks / peer},
        "unit": "picks/s",
        "ratio": peer / ours,
        "setup": f"{picks} of {len(points)} x {points.shape[1]} ({kind}), equal picks, one core, "
        f"CPU s; radius {centers.radius:.4f}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
