"""Models that RL keeps along the way: what they are, and that keeping them changes nothing."""

import pytest

from configs.base import key_of
from configs.training_stages import LoRASettings
from eval.kept import kept_model, kept_models
from tests.training.test_rl import LengthJudge, job_for, settings
from training import rl
from training.checkpoints import load_tokenizer
from training.judge_reward import JudgeReward
from training.lineage import read_lineage

LIVE = {"drop_zero_advantage": True}


@pytest.fixture(autouse=True)
def paid_for_length(monkeypatch):
    monkeypatch.setattr(rl, "Judge", LengthJudge)


def weights(folder) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("lora", [None, LoRASettings(rank=4, alpha=8)], ids=["all", "lora"])
def test_a_kept_model_is_what_a_shorter_stage_ends_with(files, tmp_path, lora):
    more = {"lora": lora, **LIVE}
    found = rl.run_rl(job_for(files, tmp_path / "kept", keep_every=2, **more))
    rl.run_rl(job_for(files, tmp_path / "short", steps=2, **more))
    rl.run_rl(job_for(files, tmp_path / "plain", **more))

    (kept,) = kept_models(tmp_path / "kept")  # of four steps; the fourth is the result
    assert kept == (2, kept_model(tmp_path / "kept", 2))
    assert found["models_kept"] == 1
    assert weights(kept[1]) == weights(tmp_path / "short/checkpoint")
    assert weights(kept[1]) != weights(tmp_path / "kept/checkpoint")
    assert weights(tmp_path / "kept/checkpoint") == weights(tmp_path / "plain/checkpoint")
    assert load_tokenizer(kept[1]).chat_template
    assert read_lineage(kept[1])[-1].settings["steps"] == "2"


def test_a_killed_stage_keeps_the_same_models(files, tmp_path, monkeypatch):
    rl.run_rl(job_for(files, tmp_path / "whole", keep_every=1, **LIVE))
    original, calls = JudgeReward.__call__, []

    def mortal(self, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError
        return original(self, **kwargs)

    monkeypatch.setattr(JudgeReward, "__call__", mortal)
    with pytest.raises(InterruptedError):
        rl.run_rl(job_for(files, tmp_path / "killed", keep_every=1, **LIVE))
    monkeypatch.setattr(JudgeReward, "__call__", original)
    rl.run_rl(job_for(files, tmp_path / "killed", keep_every=1, **LIVE))

    whole, killed = kept_models(tmp_path / "whole"), kept_models(tmp_path / "killed")
    assert [step for step, _ in killed] == [1, 2, 3]
    assert [weights(f) for _, f in killed] == [weights(f) for _, f in whole]


def test_results_from_before_models_were_kept_are_still_found():
    assert "keep_every" not in key_of(settings())
    assert '"keep_every":2' in key_of(settings(keep_every=2))
