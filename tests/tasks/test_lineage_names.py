"""A score, a checkpoint, a file, a run: whatever name one has of a result finds it."""

import shutil
from pathlib import Path

import pytest

from configs.settings.base import Settings
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.care import published
from tasks.store.lineage import descendants, find_named
from tasks.store.store import Artifact, Manifest, Store


class Knobs(Settings):
    average: float = 0.25


@stage(version=1)
def sft(out: Path, *, settings: Knobs) -> Metrics:
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "model.safetensors").write_text(f"weights {settings.average}")
    (out / "checkpoint" / "config.json").write_text("{}")
    return {}


@stage(version=1)
def evaluate_sft(out: Path, model: Artifact, *, settings: Knobs) -> Metrics:
    (out / "scores").write_text(str(settings.average))
    return {"aime24/avg": settings.average, "aime24/pass_at_k": 0.5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("store"))
    for number, average in enumerate((0.25, 0.565)):
        with active(Run(store=store, run_id=f"{number:032x}")):
            evaluate_sft(sft(settings=Knobs(average=average)), settings=Knobs(average=average))
    return store


@pytest.fixture(scope="module")
def manifests(store: Store) -> list[Manifest]:
    return [p.manifest for p in published(store)]


@pytest.fixture
def newest(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {m.stage: m for m in manifests}


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("sft/aime24", "aime24/avg"),
        ("sft/aime24/avg", "aime24/avg"),
        ("SFT/aime24", "aime24/avg"),
        ("evaluate_sft/aime24/pass_at_k", "aime24/pass_at_k"),
        ("aime24", "aime24/avg"),
    ],
)
def test_a_score_is_found_as_people_write_it(store, manifests, newest, name, score):
    found = find_named(store, manifests, name)[-1]
    assert (found.manifest, found.score) == (newest["evaluate_sft"], score)


def test_an_artifact_is_found_by_stage_key_digest_and_their_beginnings(store, manifests, newest):
    wanted = newest["sft"]
    names = ("sft", f"sft/{wanted.key}", f"sft/{wanted.key[:6]}", wanted.digest, wanted.digest[:12])
    assert [find_named(store, manifests, n)[-1].manifest for n in names] == [wanted] * len(names)


def test_a_checkpoint_is_found_by_its_place_and_by_a_copy_of_it(store, newest, manifests, tmp_path):
    wanted = newest["sft"]
    place = store.folder("sft", wanted.key) / "checkpoint"
    shutil.copytree(place, tmp_path / "copy")
    copies = (place, place / "model.safetensors", tmp_path / "copy", tmp_path / "copy/config.json")
    assert [find_named(store, manifests, str(c))[-1].manifest for c in copies] == [wanted] * 4
    (tmp_path / "copy/model.safetensors").write_text("other weights")
    (tmp_path / "copy/config.json").write_text("{ }")
    assert find_named(store, manifests, str(tmp_path / "copy")) == []


def test_a_run_is_found_by_its_id_and_by_its_address(store, manifests, newest):
    run = newest["sft"].pipeline_run
    for name in (run, f"http://127.0.0.1:5271/#/experiments/1/runs/{run}"):
        found = [n.manifest for n in find_named(store, manifests, name)]
        assert found == [newest["sft"], newest["evaluate_sft"]]


@pytest.mark.parametrize("name", ["nothing", "sft/zzz", "12.3", "aime24/nothing", "/no/such/file"])
def test_what_is_not_there_is_not_found(store, manifests, name):
    assert find_named(store, manifests, name) == []


def test_from_a_checkpoint_forward_to_its_scores_only(manifests, newest):
    assert descendants(manifests, newest["sft"]) == [newest["evaluate_sft"]]
    assert descendants(manifests, newest["evaluate_sft"]) == []
