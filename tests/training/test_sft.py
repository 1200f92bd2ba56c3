"""SFT on the real trainer: what is learned from, and by which gradient."""

import json
import math
import random
import shutil

import pytest
import torch
from accelerate import PartialState
from torch import nn

from klear.configs.settings.training import SFTSettings, TrainRuntime
from klear.eval.records import Example
from klear.eval.records.tables import count_rows, read_table, write_table
from klear.training import sft
from klear.training.alarms import DIVERGENCE
from klear.training.launch import result_files
from klear.training.launch.jobs import SFTJob
from klear.training.models import load_model, load_tokenizer
from klear.training.render import ChatFormat
from klear.training.sft import IGNORED, MuonAndAdamW, orthogonal, split_parameters, tokenized
from tests.training.conftest import close, gradients_of

RUNTIME = TrainRuntime(precision="fp32", gradient_checkpointing=False, threads=1)


@pytest.fixture
def job(files, tmp_path):

    def make(name="", **changes) -> SFTJob:
        few = {"epochs": 2, "learning_rate": 3e-3, "min_learning_rate": 3e-4, "batch_tokens": 256,
               "max_length": 256, "checkpoint_steps": 5, "runtime": RUNTIME}  # fmt: skip
        return SFTJob(out=tmp_path / name, base=files["checkpoint"], examples=files["examples"],
                      settings=SFTSettings(**(few | changes)), seed=4)  # fmt: skip

    return make


def progress(out):
    return json.loads((out / result_files.PROGRESS).read_text())


def test_examples_longer_than_the_models_places_are_refused(files, tmp_path, job):
    short = tmp_path / "short"
    shutil.copytree(files["checkpoint"], short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    with pytest.raises(ValueError, match=r"the model 40 places: lower sft\.max_length"):
        sft.run_sft(job().model_copy(update={"base": short}))


def test_experts_are_not_balanced_by_a_loss_that_nobody_set(job):
    assert sft.sft_config(job(), accumulation=1, steps=10).router_aux_loss_coef == 0.0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_lowers_the_loss_and_leaves_a_loadable_model(files, tmp_path, job, optimizer):
    result = sft.run_sft(job(epochs=4, optimizer=optimizer))
    lines = map(json.loads, (tmp_path / result_files.METRICS).read_text().splitlines())
    logged = [line["metrics"] for line in lines]
    losses = [metrics["loss"] for metrics in logged]
    if optimizer == "muon":  # one curve an optimizer: Muon's rate is not the one in the parameters
        peaks = {n: max(m[f"learning_rate/{n}"] for m in logged) for n in ("muon", "adamw")}
        assert peaks["adamw"] < 3e-3 < peaks["muon"] < 0.02
    assert any("learning_rate" in m for m in logged) == (optimizer == "adamw")
    assert losses[-1] < 0.8 * losses[0]
    assert not any(DIVERGENCE in metrics for metrics in logged)
    assert result["truncated_examples"] == 0
    folders = files["checkpoint"], tmp_path / "checkpoint"
    assert json.loads((folders[1] / "config.json").read_text())["use_cache"], "it answers slowly"
    before, after = (load_model(f, dtype="float32").state_dict() for f in folders)
    assert not torch.equal(*(w["model.embed_tokens.weight"] for w in (before, after)))  # type: ignore[arg-type]
    assert load_tokenizer(tmp_path / "checkpoint").chat_template
    assert progress(tmp_path)["done"] == progress(tmp_path)["total"] == result["steps"]


def test_a_learning_rate_a_thousand_times_too_high_rings_the_alarm_and_ends_the_stage_if_asked(job):
    wild = {"learning_rate": 3.0, "min_learning_rate": 3.0, "checkpoint_steps": 1, "epochs": 1}
    sft.run_sft(marked := job("marked", **wild))
    lines = result_files.read_lines(marked.out / result_files.METRICS)
    assert any(DIVERGENCE in line["metrics"] for line in lines)
    runtime = RUNTIME.model_copy(update={"stop_on_divergence": True})
    with pytest.raises(RuntimeError, match=r"running median .* lower the learning rate"):
        sft.run_sft(job("ended", **wild, runtime=runtime))


def test_the_parent_sees_progress_before_the_first_step(files, tmp_path, job, monkeypatch):
    """At paper size the rows are tokenised for longer than a watchdog waits."""
    monkeypatch.setattr(sft, "build_trainer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sft.run_sft(job())
    count = count_rows(files["examples"])
    note = f"tokenised 0 of {count:,} examples"
    assert progress(tmp_path) == {"done": 0, "total": 0, "note": note}


def test_a_checkpoint_is_marked_only_when_every_process_has_written_its_part(
    tmp_path, job, monkeypatch
):
    last, waits = tmp_path / ".resume/checkpoints/checkpoint-1", []
    names = ("rng_state.pth", result_files.STABLE)
    wait = lambda _: waits.append([(last / n).exists() for n in names])  # noqa: E731
    monkeypatch.setattr(PartialState, "wait_for_everyone", wait)
    sft.run_sft(job(epochs=1, batch_tokens=100_000))  # everything in one step
    assert (last / result_files.STABLE).exists()
    assert [True, False] in waits


def test_rows_are_cut_to_the_longest_length_and_tokenised_once(files, tmp_path):
    """Three examples, the middle one too long for 64 tokens."""
    path = tmp_path / "examples.parquet"
    chat = ChatFormat.from_template(load_tokenizer(files["checkpoint"]))
    rows = [Example(problem_id=n, index=3, domain="math", response=text, prompt="p", source="s")
            for n, text in {"a": "1", "b": "1 " * 300, "c": "2"}.items()]  # fmt: skip
    write_table(path, Example, rows)
    tokens = tokenized(path, chat, 64, tmp_path)
    assert [len(row["input_ids"]) < row["tokens"] for row in tokens] == [False, True, False]
    assert len(tokens[1]["input_ids"]) == 64
    again = tokenized(path, chat, 64, tmp_path, lambda *_: pytest.fail("made twice"))
    assert list(again) == list(tokens)


def test_held_out_problems_are_not_trained_on_and_their_loss_is_logged(files, tmp_path, job):
    """Evaluating changes no bit: the same weights come of examples without those problems."""
    rows = list(read_table(files["examples"], Example))
    sft.run_sft(validated := job("validated", validation_problems=3))
    logged = [
        line["metrics"] for line in result_files.read_lines(validated.out / result_files.METRICS)
    ]
    losses = [metrics["eval/loss"] for metrics in logged]
    assert losses[-1] < 0.9 * losses[0]
    aside = set(random.Random(4).sample(sorted({row.problem_id for row in rows}), 3))
    few = tmp_path / "few.parquet"
    write_table(few, Example, [row for row in rows if row.problem_id not in aside])
    sft.run_sft(plain := job("plain").model_copy(update={"examples": few}))
    one, other = (load_model(j.out / "checkpoint", dtype="float32") for j in (validated, plain))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with pytest.raises(ValueError, match="validation_problems=999 leaves none of"):
        sft.run_sft(job("nothing", validation_problems=999))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 5, bias=False)
        self.lm_head.weight = self.embed.weight  # tied


def test_muon_gets_the_matrices_outside_embeddings_and_head_and_both_one_schedule():
    model = Small()
    matrices, rest = split_parameters(model)
    assert [id(p) for p in matrices] == [id(model.middle.weight)]
    assert {id(p) for p in rest} == {id(model.embed.weight), id(model.middle.bias)}
    optimizer = MuonAndAdamW(model, muon_lr=0.02, adamw_lr=1e-3, weight_decay=0.01)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.01, 5e-4])


def test_muon_takes_steps_of_equal_length_in_every_direction():
    torch.manual_seed(0)
    for shape in ((6, 4), (4, 6)):
        u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
        step = orthogonal(u * torch.tensor([1.0, 0.5, 0.2, 0.1]) @ v)
        along = u.T @ step @ v.T  # Newton-Schulz changes singular values alone
        assert torch.allclose(along, along.diag().diag(), atol=1e-4)
        assert ((along.diag() > 0.6) & (along.diag() < 1.3)).all()


@pytest.fixture
def train(files, job):
    """`train(micro_batch_tokens, **settings)`: the trainer, and the gradients of its steps."""

    def run(budget, name="run", **changes):
        runtime = RUNTIME.model_copy(update={"micro_batch_tokens": budget})
        paper = {"epochs": 1, "batch_tokens": 2_000, "max_grad_norm": 1e9, "learning_rate": 8e-5,
                 "min_learning_rate": 4e-5, "runtime": runtime}  # fmt: skip
        stage_job, tokenizer = job(name, **(paper | changes)), load_tokenizer(files["checkpoint"])
        model = load_model(files["checkpoint"], dtype="float32")
        rows = tokenized(
            files["examples"], ChatFormat.from_template(tokenizer), 256, stage_job.out / "tokens"
        )
        trainer = sft.build_trainer(stage_job, model, tokenizer, rows)
        return trainer, gradients_of(trainer)

    return run


def test_a_step_has_one_gradient_for_every_micro_batch_and_layout(train):
    _, in_one = train(10_000, "whole")
    for budget in (1, 1_000):  # single sequences, then about 8 at a time
        trainer, cut = train(budget, f"cut{budget}")
        assert trainer.args.gradient_accumulation_steps > 1
        assert len(cut) == len(in_one) > 1
        close(cut[0], in_one[0], rtol=2e-4)
        entropies = [line["entropy"] for line in trainer.state.log_history if "entropy" in line]
        assert min(entropies) > 0.9 * max(entropies)  # what fills up a step is not in its mean
        assert ([] in trainer.plan) == (budget == 1)
    trainer, packed = train(500, "packed", packing=True)  # flash attention: test_gppo_equivalence
    assert trainer.padding_free
    close(packed[0], in_one[0], rtol=2e-4)


def test_the_gradient_is_the_mean_nll_of_the_answers_in_float64(train, files):
    trainer, gradients = train(300)
    plan = trainer.plan[: trainer.args.gradient_accumulation_steps]
    model = load_model(files["checkpoint"], dtype="float32").double()
    nll, tokens = torch.zeros((), dtype=torch.float64), 0
    for i in (i for batch in plan for i in batch):
        row = trainer.train_dataset[i]
        ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row["labels"])
        logp = model(ids[None]).logits[0, :-1].log_softmax(-1)
        scored = labels[1:] != IGNORED
        nll = nll - logp.gather(1, ids[1:, None])[:, 0][scored].sum()
        tokens += int(scored.sum())
    (nll / tokens).backward()
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    close({n: g.double() for n, g in gradients[0].items()}, theirs, rtol=1e-3)


def test_the_learning_rate_falls_on_a_cosine_from_8e5_to_4e5(train, monkeypatch):
    """§4.1; the rate of step k of n is that of the cosine at k/n."""
    monkeypatch.setattr(sft, "LOG_STEPS", 1)
    trainer, steps = train(10_000, batch_tokens=256, warmup_share=0.0)
    rates = [line["learning_rate"] for line in trainer.state.log_history if "loss" in line]
    n = len(steps)
    assert n > 10
    expected = [4e-5 + 4e-5 * (1 + math.cos(math.pi * k / n)) / 2 for k in range(n)]
    assert rates == pytest.approx(expected, rel=1e-6)
