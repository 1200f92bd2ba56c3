"""`klear lineage` as a user types it: what is behind a result, and a score with its protocol."""

import json
from pathlib import Path

import pytest

from klear.configs.settings.base import Settings
from klear.flows.cli.main import main
from klear.tasks.stage.run import Run, active
from klear.tasks.stage.stage import Metrics, stage
from klear.tasks.store.store import Artifact, Store

RESULT = {
    "name": "aime24", "k": 4, "ci_low": 0.25, "ci_high": 0.75,
    "statement": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 64, "grader_version": 2,
                  "checkpoint": "c0ffee"},
}  # fmt: skip
PROTOCOL = "aime24 avg@4 56.5 % [25.0, 75.0], temperature 0.6, top_p 0.95, max_tokens 64"


class Knobs(Settings):
    average: float = 0.25


@stage(version=1)
def select(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text("rows")
    return {}


@stage(version=1)
def sft(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "checkpoint").mkdir()
    (out / "checkpoint" / "model.safetensors").write_text(f"weights {settings.average}")
    (out / "checkpoint" / "config.json").write_text("{}")
    return {}


@stage(version=1)
def evaluate_sft(out: Path, model: Artifact, *, settings: Knobs) -> Metrics:
    (out / "results.json").write_text(json.dumps([RESULT | {"avg": settings.average}]))
    return {"aime24/avg": settings.average, "aime24/pass_at_k": 0.5}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints and their scores; the second one is the newest."""
    home = tmp_path_factory.mktemp("home")
    for number, average in enumerate((0.25, 0.565)):
        with active(Run(store=Store(home / "store"), run_id=f"{number:032x}")):
            model = sft(select(settings=Knobs()), settings=Knobs(average=average))
            evaluate_sft(model, settings=Knobs(average=average))
    return home


@pytest.fixture
def newest(home: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The newest checkpoint, as `klear` finds it."""
    monkeypatch.setenv("KLEAR_HOME", str(home))
    with active(Run(store=Store(home / "store"))):
        return sft(select(settings=Knobs()), settings=Knobs(average=0.565))


def said(capsys: pytest.CaptureFixture[str], name: str) -> tuple[list[str], str]:
    """The results of the chain, and the rest of what was printed."""
    assert main(["lineage", name]) == 0
    chain, _, rest = capsys.readouterr().out.partition("\n\n")
    return [line.split()[0] for line in chain.splitlines()], rest


@pytest.mark.parametrize(
    "name", ["sft/aime24", "sft/aime24/avg", "evaluate_sft/aime24/pass_at_k", "aime24"]
)
def test_a_score_as_people_write_it_leads_to_the_rows_and_says_its_protocol(newest, capsys, name):
    chain, rest = said(capsys, name)
    assert [result.split("/")[0] for result in chain] == ["select", "sft", "evaluate_sft"]
    assert chain[1] == f"sft/{newest.key}"
    assert PROTOCOL in rest


@pytest.mark.parametrize("digits", [None, 6, 16])
def test_a_checkpoint_is_found_by_its_stage_and_key(newest, capsys, digits):
    name = "sft" if digits is None else f"sft/{newest.key[:digits]}"
    chain, _ = said(capsys, name)
    assert [r.split("/")[0] for r in chain] == ["select", "sft"]
    assert chain[-1] == f"sft/{newest.key}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rl_code/aime24", ""), ("sft/zzz", ""), ("12.3", " ("), ("aime24/no", ""),
     ("sft/amie24", "; did you mean sft/aime24?"), ("selct", "; did you mean select?")],
)  # fmt: skip
def test_what_is_not_there_fails_and_says_what_a_name_may_be(newest, capsys, name, meant):
    assert main(["lineage", name]) == 1
    assert f"no result {name}{meant}" in capsys.readouterr().out
