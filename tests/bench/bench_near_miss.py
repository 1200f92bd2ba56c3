"""Near misses on real problems: what a cosine is worth, encoder by encoder.

    python tests/bench/bench_near_miss.py [--embed FOLDER]

Rows: every 24th of DeepScaleR, every second of MATH's train split, AIME 1983-2023; items: AIME24,
AIME25, HMMT Feb 2025, MATH-500. Of the pairs that n-grams do not find, `LABELLED` of each band of
cosines were read: the `same` problem in other words, the same with `other` numbers or names, a
`variant` (the same topic and form, another question), or `no` near miss; `near_miss_labels.json`
has the verdicts by ids. The precision from a cosine on counts `same` and `other`, and weighs bands
by their pairs. Recall is that of planted rows: every item with other numbers, and every item
reworded by a rule; and of AIME24 in the typesetting of aimo-validation-aime.
"""

import argparse
import hashlib
import json
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from real_documents import DATA, rows_of

from klear.configs.settings.data import (
    HASHING,
    DecontaminateSettings,
    NearMissSettings,
    PartsRuntime,
)
from klear.eval.records import Problem
from klear.eval.records.tables import read_table, write_table
from klear.tasks.data.decontaminate import decontaminate
from klear.tasks.data.semantic_contamination import NEAR, NearMiss, near_misses
from klear.tasks.store.store import Artifact

SOURCES = {"deepscaler": 24, "math_train": 2, "aime_1983_2023": 1, "aimo_validation_aime": 1}
"""Every so manyth row of each."""
BENCHMARKS = ("aime24", "aime25", "hmmt_feb_2025", "math500")
LABELS = Path(__file__).with_name("near_miss_labels.json")
LABELLED = 15
BANDS = (0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0001)
PLANTED = ("renumbered", "reworded")
NEAR_MISS = {"same", "other"}
_NUMBER = re.compile(r"\d+")
REWORDED = (
    ("Find the", "Determine the"), ("Find", "Compute"), ("How many", "What is the number of"),
    ("What is", "Give"), ("Let ", "Suppose that "), ("Suppose", "Assume"),
    ("such that", "for which"), ("Compute", "Work out"), ("exactly", "precisely"),
    ("positive integer", "natural number"),
    ("number of", "count of"), ("value of", "result for"), ("Evaluate", "Calculate"),
)  # fmt: skip


def problem_of(row: dict[str, Any]) -> str:
    return row.get("problem") or row["question"]


def renumbered(text: str, chance: random.Random) -> str:
    """Every number of two digits or more, and half of the others, is another one of as many."""

    def other(match: re.Match[str]) -> str:
        size = len(match[0])
        if size == 1 and chance.random() < 0.5:
            return match[0]
        return str(chance.randrange(10 ** (size - 1), 10**size))

    return _NUMBER.sub(other, text)


def reworded(text: str, chance: random.Random) -> str:
    """Common phrases by others, and every seventh word left out where it is of letters alone."""
    for one, two in REWORDED:
        text = text.replace(one, two)
    words = text.split(" ")
    start = chance.randrange(4, 9)
    gone = {i for i in range(start, len(words), 7) if words[i].isalpha()}
    return " ".join(word for i, word in enumerate(words) if i not in gone)


def table(folder: Path, texts: list[tuple[str, str]]) -> Artifact:
    """(source, prompt) of each row, as `collect` publishes them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [Problem(domain="math", prompt=p, answer="1", source=source) for source, p in texts]
    write_table(folder / "kept.parquet", Problem, rows)
    return Artifact(stage="made", key=folder.name, digest=str(folder), folder=folder)


def pairs(place: Path, model: str) -> tuple[list[NearMiss], Artifact, Artifact, float]:
    """Every pair from the lowest band on, the rows, the items and the CPU seconds it took."""
    items = [(n, problem_of(r)) for n in BENCHMARKS for r in rows_of(DATA / n / "test.jsonl.gz")]
    chance = random.Random(0)
    rows = list[tuple[str, str]]()
    for name, every in SOURCES.items():
        some = islice(rows_of(DATA / name / "train.jsonl.gz"), 0, None, every)
        rows += [(name, problem_of(row)) for row in some]
    for name, rule in zip(PLANTED, (renumbered, reworded), strict=True):
        rows += [(name, rule(text, chance)) for _, text in items]
    problems, benchmarks = table(place / "rows", rows), table(place / "items", items)
    leaks, out = place / "leaks", place / "near"
    for folder in (leaks, out):
        folder.mkdir()
    decontaminate.body(leaks, problems, benchmarks, settings=DecontaminateSettings(n=9))
    artifact = Artifact(stage="made", key="leaks", digest="leaks", folder=leaks)
    runtime = PartsRuntime(rows_per_part=1024)
    settings = NearMissSettings(cosine=BANDS[0], model=model, runtime=runtime)
    began = time.process_time()
    near_misses.body(out, problems, benchmarks, artifact, settings=settings)
    took = time.process_time() - began
    return list(read_table(out / NEAR, NearMiss)), problems, benchmarks, took


def band(cosine: float) -> float:
    return next(low for low, high in pairwise(BANDS) if low <= cosine < high)


def precision(near: list[NearMiss]) -> dict[str, Any]:
    """By the lower end of each band: its pairs, verdicts, and the precision from there on."""
    labels: dict[str, str] = json.loads(LABELS.read_text())
    by_band: dict[float, set[str]] = defaultdict(set)
    for hit in near:
        if not hit.leak and hit.source not in PLANTED:
            by_band[band(hit.cosine)].add(f"{hit.row_id}/{hit.item_id}")
    result, hits, right = dict[str, Any](), 0, defaultdict[str, float](float)
    for low in sorted(by_band, reverse=True):
        in_band = by_band[low]
        chosen = sorted(in_band, key=lambda key: hashlib.sha256(key.encode()).digest())[:LABELLED]
        verdicts = Counter(labels[key] for key in chosen if key in labels)
        labelled = max(verdicts.total(), 1)
        hits += len(in_band)
        for name, count in verdicts.items():
            right[name] += count / labelled * len(in_band)
        result[f"{low:g}"] = {
            "pairs": len(in_band),
            **verdicts,
            "precision_from": round(sum(right[name] for name in NEAR_MISS) / hits, 2),
            "with_variants_from": round(1 - (hits - sum(right.values()) + right["no"]) / hits, 2),
        }
    return result


def recall(near: list[NearMiss], items: Artifact, rows: Artifact) -> dict[str, Any]:
    """Share of planted rows whose own item is found, by cosine, and by n-grams alone."""
    own = [p.id for p in read_table(items.file("kept.parquet"), Problem)]
    number, place = dict[tuple[str, int], str](), Counter[str]()
    for i, p in enumerate(read_table(rows.file("kept.parquet"), Problem), 1):
        number[p.source, i] = own[place[p.source]] if p.source in PLANTED else ""
        place[p.source] += 1
    result: dict[str, Any] = {}
    for name in PLANTED:
        right = [h for h in near if h.source == name and number[name, h.row_number] == h.item_id]
        result[name] = {f"{low:g}": round(sum(h.cosine >= low for h in right) / len(own), 3)
                        for low in BANDS[:-1]}  # fmt: skip
        result[name]["leaks by n-grams"] = round(sum(h.leak for h in right) / len(own), 3)
    aimo = [h for h in near if h.source == "aimo_validation_aime" and h.benchmark == "aime24"]
    result["aimo in aime24, of 30"] = {
        f"{low:g}": len({h.item_id for h in aimo if h.cosine >= low}) for low in BANDS[:-1]
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embed", default=HASHING)
    chosen = parser.parse_args()
    if not DATA.exists():
        raise SystemExit("needs ../shared/data")
    with tempfile.TemporaryDirectory() as folder:
        near, rows, items, took = pairs(Path(folder), chosen.embed)
        count = pq.read_metadata(rows.file("kept.parquet")).num_rows
        result = {
            "bench": "near_miss",
            "encoder": Path(chosen.embed).name,
            "rows": count,
            "texts_per_cpu_s": round(count / took, 1),
            "precision": precision(near),
            "recall": recall(near, items, rows),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
