"""Near misses: what is listed of rows and items, by which encoder."""

from pathlib import Path

import numpy as np
import pytest

from klear.configs.settings.data import DecontaminateSettings, NearMissSettings, PartsRuntime
from klear.eval.tables import read_table
from klear.tasks.data import near_misses as module
from klear.tasks.data.decontaminate import decontaminate
from klear.tasks.data.near_misses import NEAR, NearMiss, hashing_encoder, near_misses
from klear.tasks.store.store import Artifact
from tests.eval.evaluations_by_hand import math_problem
from tests.tasks.manifests_by_hand import folder_with

PLANE = {"zero": 0.0, "ten": 10.0, "sixty": 60.0, "ninety": 90.0}


def artifact(folder: Path, *rows: tuple[str, str]) -> Artifact:
    """(source, prompt) of each row."""
    return folder_with(folder, kept=[math_problem(p, s) for s, p in rows])


def degrees(texts: list[str]) -> np.ndarray:
    """Unit vectors of the plane, at the angle that a text begins with."""
    angles = np.deg2rad([PLANE[text.split()[0]] for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def listed(place: Path, settings: NearMissSettings, rows: Artifact, items: Artifact):
    for name in ("found", "out"):
        (place / name).mkdir(parents=True)
    decontaminate.body(place / "found", rows, items, settings=DecontaminateSettings())
    found = Artifact.of_folder(place / "found")
    metrics = near_misses.body(place / "out", rows, items, found, settings=settings)
    return dict(metrics), list(read_table(place / "out" / NEAR, NearMiss))


@pytest.mark.parametrize("rows_per_part", [1, 4096])
def test_of_each_row_and_benchmark_the_nearest_item_is_listed(tmp_path, monkeypatch, rows_per_part):
    """cos 10° = 0.985, cos 30° = 0.866, cos 50° = 0.643. One row has all words of its item: n-grams
    find it. Computed row by row it is the same."""
    monkeypatch.setattr(module, "encoder_of", lambda *_: degrees)
    rows = artifact(tmp_path / "rows", ("s", "ten a"), ("s", "ninety b"), ("t", "zero c"))
    items = artifact(
        tmp_path / "items", ("x", "zero c"), ("x", "sixty d"), ("y", "sixty e"), ("y", "ten f")
    )
    settings = NearMissSettings(cosine=0.8, runtime=PartsRuntime(rows_per_part=rows_per_part))
    metrics, pairs = listed(tmp_path / "run", settings, rows, items)
    assert [(p.row_number, p.row, p.benchmark, p.item, p.cosine, p.leak) for p in pairs] == [
        (1, "ten a", "x", "zero c", 0.9848, False),
        (1, "ten a", "y", "ten f", 1.0, False),
        (2, "ninety b", "x", "sixty d", 0.866, False),
        (2, "ninety b", "y", "sixty e", 0.866, False),
        (3, "zero c", "x", "zero c", 1.0, True),
        (3, "zero c", "y", "ten f", 0.9848, False),
    ]
    counted = {"near/s/x": 2, "near/s/y": 2, "near/t/y": 1}
    assert metrics == {"near": 5, "leaks": 1, **counted}


def test_the_hashing_encoder_looks_past_numbers_and_sees_words():
    texts = [
        "A train goes 30 km in 2 hours. How fast is it?",
        "A train goes 5,500 km in 12.5 hours. How fast is it?",
        "Find the remainder of 30 divided by 2.",
        "",
    ]
    vectors = hashing_encoder(texts)(texts).toarray()
    cosines = vectors @ vectors.T
    assert cosines[0, 1] == pytest.approx(1)
    assert cosines[0, 2] < 0.3
    assert not cosines[3].any()
