"""The data stages of `tiny` and of a small `replay` give the bytes they always gave (seed 0).

`digests.json` beside this file holds the digest and the key of every stage. A change that is meant
to alter a result bumps the version of its stage and records them anew:

    python tests/flows/test_digests.py
"""

import json
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from klear.configs.loading import load_profile
from klear.configs.settings.pipeline import Pipeline
from klear.flows.dag import build_dag
from klear.flows.run import compute
from klear.tasks.engine.run import Run, active
from klear.tasks.store.store import Store

RECORDED = Path(__file__).with_name("digests.json")
ROOT = Path(__file__).parents[2]
FEW = {
    "tiny": (
        "dedup.near=true",
        "distill.sources=[countdown]",
        "distill.samples_per_prompt=1",
        "sample.sources=[by_example_rl]",
        "sample.samples_per_prompt=2",
        "select.size=300",
        "select.balanced=true",
    ),
    "replay": (
        "dedup.near=true",
        "distill.sources=[aime_1983_2023]",
        "sample.sources=[aime_1983_2023]",
    ),
}


def settings(profile: str) -> Pipeline:
    return load_profile(profile, ["seed=0", *FEW[profile]])


def digests(profile: str, store: Path) -> dict[str, list[str]]:
    """Key and digest of every data stage, computed in this process."""
    chosen = settings(profile)
    with active(Run(store=Store(store))):
        ends = ("base", "report")
        calls = takewhile(lambda call: call.stage.name not in ends, build_dag(chosen).values())
        results = compute(chosen, calls=[*calls])
    return {stage: [result.key, result.digest] for stage, result in results.items()}


@pytest.mark.parametrize("profile", ["tiny", pytest.param("replay", marks=pytest.mark.system)])
def test_every_data_stage_gives_the_recorded_bytes(profile, tmp_path, monkeypatch):
    if profile == "replay" and not (ROOT / "../shared/data").is_dir():
        pytest.skip("needs ../shared/data")
    monkeypatch.chdir(ROOT)  # files of `replay` are named from here, and their names are in keys
    assert digests(profile, tmp_path / "store") == json.loads(RECORDED.read_text())[profile]


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        recorded = {profile: digests(profile, Path(place) / profile) for profile in FEW}
    RECORDED.write_text(json.dumps(recorded, indent=2) + "\n")
