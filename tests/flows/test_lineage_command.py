"""`klear lineage` as a user types it: the chain, the score with its protocol, what came of it."""

import json
from pathlib import Path

import pytest

from configs.settings.base import Settings
from flows.cli.main import main
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.store import Artifact, Store

RESULT = {
    "name": "aime24", "k": 4, "avg": 0.5, "ci_low": 0.25, "ci_high": 0.75,
    "statement": {"temperature": 0.6, "top_p": 0.95, "max_tokens": 64, "grader_version": 2,
                  "checkpoint": "c0ffee"},
}  # fmt: skip


class Knobs(Settings):
    value: int = 1


@stage(version=1)
def select(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows").write_text("rows")
    return {}


@stage(version=1)
def sft(out: Path, rows: Artifact, *, settings: Knobs) -> Metrics:
    (out / "weights").write_text("w")
    return {}


@stage(version=1)
def evaluate_sft(out: Path, model: Artifact, *, settings: Knobs) -> Metrics:
    (out / "results.json").write_text(json.dumps([RESULT]))
    return {"aime24/avg": 0.5}


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path))
    with active(Run(store=Store(tmp_path / "store"))):
        model = sft(select(settings=Knobs()), settings=Knobs())
        return evaluate_sft(model, settings=Knobs())


def said(capsys: pytest.CaptureFixture[str], name: str) -> tuple[list[str], str]:
    """The stages of the chain, and the rest of what was printed."""
    assert main(["lineage", name]) == 0
    chain, _, rest = capsys.readouterr().out.partition("\n\n")
    return [line.split("/")[0] for line in chain.splitlines()], rest


def test_a_score_leads_to_the_rows_and_says_its_protocol(scored, capsys):
    chain, rest = said(capsys, "sft/aime24")
    assert chain == ["select", "sft", "evaluate_sft"]
    assert "aime24 avg@4 50.0 % [25.0, 75.0], T 0.6, top_p 0.95, 64 tokens, grader 2" in rest
    assert str(scored.folder) in rest


def test_a_checkpoint_leads_back_to_its_rows_and_forward_to_its_score(scored, capsys):
    chain, rest = said(capsys, "sft")
    assert chain == ["select", "sft"]
    assert f"evaluate_sft/{scored.key}" in rest


def test_an_artifact_leads_to_everything_made_of_it(scored, capsys):
    chain, rest = said(capsys, "select")
    assert chain == ["select"]
    (line,) = [x for x in rest.splitlines() if "made of it" in x]
    assert line.index("sft/") < line.index("evaluate_sft/")


def test_what_is_not_there_fails_and_says_what_a_name_may_be(scored, capsys):
    assert main(["lineage", "rl_code/aime24"]) == 1
    assert "no result rl_code/aime24" in capsys.readouterr().out
