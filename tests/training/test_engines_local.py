"""Local generation with a real, very small model, sampled as `generate` does."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm_server import countdown_requests, tiny_teacher

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.configs.settings.training import BaseModelSettings
from klear.eval.records import Sample
from klear.training.engines import generate, sampler
from klear.training.engines.generate import Journal, generate_job, journal_path, make_engine
from klear.training.engines.interface import EngineError, Request
from klear.training.engines.local_model import LocalModel, yarn_parameters
from klear.training.engines.sampler import check_sampling, draw, one_of, sample
from klear.training.engines.vllm_engine import VLLMEngine, engine_arguments
from klear.training.launch.jobs import GenerateJob
from klear.training.models import load_model, load_tokenizer
from klear.training.render import ChatFormat

TINY = BaseModelSettings(
    kind="random", hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=16, vocabulary=280,
    max_positions=128,
)  # fmt: skip
LONG = Request(problem_id="long", index=0, prompt="12 " * 200)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("model"), TINY)


def settings(checkpoint: Path, **more: Any) -> EngineSettings:
    runtime = EngineRuntime(batch_size=4)
    fields = {"kind": "transformers", "runtime": runtime, **more}
    return EngineSettings(model=str(checkpoint), **fields)


requests = partial(countdown_requests, 11)


def job(checkpoint: Path, out: Path, requests: list[Request]) -> GenerateJob:
    out.mkdir(exist_ok=True)
    file = out / "requests.jsonl"
    file.write_text("".join(json.dumps(r._asdict()) + "\n" for r in requests))
    return GenerateJob(
        out=out,
        engine=settings(checkpoint),
        sampling=Sampling(max_tokens=12, temperature=1.0, top_p=1.0),
        requests=file,
    )


def results(out: Path, requests: list[Request]) -> list[Sample]:
    with Journal(journal_path(out)) as journal:
        return list(journal.samples(r.key for r in requests))


def test_a_job_answers_every_request_once_and_killed_in_a_batch_it_ends_with_the_same_samples(
    checkpoint, tmp_path, monkeypatch
):
    """One has no room for an answer: it is marked, and costs the others nothing."""
    every = [*requests(), LONG]
    metrics = generate_job(job(checkpoint, tmp_path / "whole", every))
    assert metrics["tokens_per_second"] > 0
    *got, long = results(tmp_path / "whole", every)
    assert (len(got), long.finish_reason, long.text) == (11, "error", "")
    assert all(1 <= s.completion_tokens <= 12 for s in got)
    assert all(s.prompt_tokens > 10 for s in got)
    tokens = sum(s.completion_tokens for s in got)
    progress = json.loads((tmp_path / "whole/.resume/progress.json").read_text())
    assert (progress["done"], progress["total"]) == (12, 12)
    assert f"{tokens:,} tokens" in progress["note"]
    line = (tmp_path / "whole/logs/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["metrics"]["generated/tokens_per_second"] > 0
    lines = journal_path(tmp_path / "whole").read_bytes().splitlines(keepends=True)
    torn = job(checkpoint, tmp_path / "torn", every)
    journal_path(torn.out).parent.mkdir()
    journal_path(torn.out).write_bytes(b"".join(lines[:6]) + lines[6][:9])
    generate_job(torn)
    assert results(torn.out, every) == [*got, long]
    monkeypatch.setattr(generate, "make_engine", lambda *_: pytest.fail("started"))
    generate_job(torn)


def test_answers_of_an_earlier_round_do_not_stand_for_those_of_this_one(checkpoint, tmp_path):
    """Rounds share a journal: 12 answers are there already, to other requests than these 4."""
    second = job(checkpoint, tmp_path, countdown_requests(4))
    with Journal(journal_path(second.out)) as journal:
        for i in range(12):
            journal.append(Sample(problem_id=f"round one, {i}", index=0, model="m", text="t"))
    generate_job(second)
    assert len(results(second.out, countdown_requests(4))) == 4


def test_when_no_prompt_fits_the_run_fails_in_one_line(checkpoint, tmp_path):
    with pytest.raises(EngineError, match="has no room for an answer: the shortest of 1 prompts"):
        generate_job(job(checkpoint, tmp_path, [LONG]))


@pytest.mark.parametrize(
    ("cut", "text", "finish"), [(None, "ab", "stop"), (-1, "ab", "length"), (0, "", "empty")]
)
def test_how_an_answer_ended_follows_from_its_tokens(files, cut, text, finish):
    tokenizer = load_tokenizer(files["checkpoint"])
    chat = replace(ChatFormat.from_template(tokenizer), prefill="<think>\n")
    model: Any = SimpleNamespace(
        settings=EngineSettings(kind="transformers", model="m"), ends=chat.closing, chat=chat
    )
    ids = [*tokenizer("ab", add_special_tokens=False)["input_ids"], *chat.closing]
    ids = ids[:cut] if cut else ids if cut is None else list(chat.closing)
    sample = LocalModel.sample(model, Request(problem_id="p", index=3, prompt="?"), 5, ids)
    assert (sample.text, sample.finish_reason) == ("<think>\n" + text, finish)
    assert (sample.index, sample.prompt_tokens, sample.completion_tokens) == (3, 5, len(ids))


def test_answers_end_at_the_models_positions(checkpoint):
    """Of prompts in one batch each has the room that its own length leaves."""
    prompts = [Request(problem_id=str(n), index=0, prompt="7 " * n) for n in (1, 40)]
    engine: Any
    with make_engine(settings(checkpoint), Sampling(max_tokens=200, temperature=0)) as engine:
        engine.ends = (engine.config.vocab_size - 1,)  # never the likeliest: only positions end it
        got = list(engine.answer(prompts))
    assert [s.prompt_tokens + s.completion_tokens for s in got] == [128, 128]
    assert len({s.prompt_tokens for s in got}) == 2
    assert {s.finish_reason for s in got} == {"length"}
    assert [engine.room(prompt) for prompt in (28, 127, 128, 200)] == [100, 1, 0, 0]
    engine.positions = None
    assert engine.room(10**6) == 200


def test_yarn_stretches_the_context_by_its_factor(checkpoint):
    """§4.3: 32K x 2.5 = 80K positions, interpolated from the trained 32K."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
    trained = SimpleNamespace(max_position_embeddings=32_768, rope_parameters=rope)
    stretched = rope | {"rope_type": "yarn", "factor": 2.5}
    stretched |= {"original_max_position_embeddings": 32_768}
    overrides = yarn_parameters(trained, 2.5)
    assert overrides == {"max_position_embeddings": 81_920, "rope_parameters": stretched}
    vllm = engine_arguments(settings(checkpoint, kind="vllm", yarn_factor=2.5), trained)
    assert vllm["hf_overrides"] == overrides
    assert engine_arguments(settings(checkpoint, kind="vllm"), trained)["hf_overrides"] == {}
    with make_engine(settings(checkpoint, yarn_factor=2.0), Sampling()) as engine:
        got = list(engine.answer(countdown_requests(2)))
    assert 128 < max(s.prompt_tokens + s.completion_tokens for s in got) <= 256


@pytest.mark.parametrize(("positions", "limit", "needed"), [(90, 90, None), (128, 99, 100)])
def test_a_length_of_ours_never_cuts_an_answer(checkpoint, positions, limit, needed):
    """A prompt of 10 tokens and an answer of up to 90; where the model ends is its own affair."""
    model: Any = SimpleNamespace(
        chat=SimpleNamespace(prompt_ids=lambda prompts: [[1] * 10]),
        settings=settings(checkpoint, runtime=EngineRuntime(max_model_len=limit)),
        room=lambda prompt: min(90, positions - prompt),
    )
    ask = VLLMEngine._ask(model, LONG)
    if needed:
        with pytest.raises(EngineError, match=f"max_model_len={limit} would cut.*need {needed}"):
            ask.send(None)
    else:
        with pytest.raises(AttributeError, match="sampling"):  # beyond the check
            ask.send(None)


def small(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    prompts = ChatFormat.from_template(tokenizer).prompt_ids(
        ["Make 5 from 1, 2, 3.", "Make 77 from 7, 7, 11.", "p"] * 3
    )
    model: Any = load_model(files["checkpoint"], dtype="float32")
    with torch.no_grad():  # an untrained model repeats its last token; stir its layers
        for weight in (p for p in model.model.layers.parameters() if p.ndim == 2):
            weight *= 5
    return model, prompts


def greedy(model, prompts, stops, most, batch_size):
    return sample(
        model, prompts, max_tokens=most, stop_ids=stops, temperature=0,
        batch_size=batch_size,
    )  # fmt: skip


@pytest.mark.parametrize(("batch_size", "grouped_from"), [(256, sampler.ONE_THREAD_BELOW), (3, 0)])
def test_greedy_answers_are_those_of_generate_one_by_one(
    files, monkeypatch, grouped_from, batch_size
):
    """Whatever the lengths of the prompts, whoever answers beside them, by either attention."""
    monkeypatch.setattr(sampler, "ONE_THREAD_BELOW", grouped_from)
    model, prompts = small(files)
    prompts[3:6] = [prompts[0] * 3, prompts[1][:9], prompts[1][:11]]
    first = greedy(model, prompts, [-1], 12, 256)  # nothing stops
    stops = sorted({answer[4] for answer in first})  # so that rows end at different places
    answers = greedy(model, prompts, stops, 12, batch_size)
    assert model.config._attn_implementation == "sdpa"
    assert len({len(a) for a in answers}) > 1
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
            eos_token_id=stops, pad_token_id=0,
        )  # fmt: skip
        assert out[0, len(prompt) :].tolist() == answer


SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
          "linear_num_value_heads": 4}  # fmt: skip
HYBRIDS = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "bamba": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_chunk_size": 8,
        "attn_layer_indices": [1],
    },
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"] * 2, **LINEAR},
}


@pytest.mark.parametrize("family", HYBRIDS)
def test_states_of_convolutions_and_linear_attention_move_with_their_rows(family):
    """Of prompts of many lengths, more than a batch: as by reading all anew for every token."""
    config = AutoConfig.for_model(family, **SHAPE, **HYBRIDS[family])
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    prompts = [torch.randint(3, 64, (n,)).tolist() for n in (5, 9, 9, 14, 30, 31, 6)]
    answers = greedy(model, prompts, [-1], 12, 4)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = [*prompt, *answer]
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer


UNMOVABLE = {
    "mamba": {"state_size": 8},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 4,
                "num_local_experts": 2, "num_experts_per_tok": 1},
}  # fmt: skip


@pytest.mark.parametrize("family", UNMOVABLE)
def test_a_model_whose_states_cannot_be_moved_is_refused_with_the_fix(family):
    config = AutoConfig.for_model(family, **SHAPE, **UNMOVABLE[family])
    model: Any = AutoModelForCausalLM.from_config(config)
    with pytest.raises(EngineError, match=rf"{family} (keeps|takes) .*use kind=vllm"):
        check_sampling(model)


def test_a_long_prompt_is_not_read_token_by_token_behind_a_short_one(files):
    model, _ = small(files)
    passes = []
    model.register_forward_hook(lambda _, inputs, output: passes.append(output.logits.shape))
    answers = greedy(model, [[5, 6], [5, 6], [7] * 90, [5, 6, 7]], [-1], 1, 256)
    assert [len(a) for a in answers] == [1, 1, 1, 1]
    assert len(passes) == 2  # the short ones, of which one is longer by a token; the long one


def test_every_token_is_drawn_as_often_as_its_chance():
    """Of 40,000 draws each share is within five standard errors; no chance is no draw."""
    chances = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    drawn = one_of(chances.expand(40_000, 6), torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn[:, 0], minlength=6) / 40_000
    assert ((shares - chances).abs() <= 5 * (chances * (1 - chances) / 40_000).sqrt()).all()


def test_top_p_never_draws_from_the_tail():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2_000, 1)
    generator = torch.Generator().manual_seed(0)
    assert set(draw(logits, 1.0, 0.75, generator).tolist()) == {0, 1}
    assert set(draw(logits, 1.0, 1.0, generator).tolist()) == {0, 1, 2, 3}


def test_a_large_vocabulary_is_drawn_from_as_if_it_were_sorted():
    """top_p 0.9 over 3,000 words, drawn 8,000 times: the words of the sorted nucleus, each as
    often as its share of it; at top_p 0.01 nearly every draw from all words is refused."""
    chances = torch.softmax(3 * torch.randn(3_000, generator=torch.Generator().manual_seed(1)), 0)
    ordered, index = chances.sort(descending=True)
    for top_p in (0.9, 0.01):
        inside = index[ordered.cumsum(0) - ordered < top_p]
        share = torch.zeros_like(chances).index_copy(0, inside, chances[inside])
        share /= share.sum()
        logits = chances.log().expand(1_000, -1)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.cat([draw(logits, 1.0, top_p, generator) for _ in range(8)])
        seen = torch.bincount(drawn, minlength=3_000) / 8_000
        assert set(drawn.tolist()) <= set(inside.tolist())
        error = (share * (1 - share) / 8_000).sqrt()
        assert ((seen - share).abs() <= 5 * error + 2 / 8_000).all()


def test_every_answer_may_have_a_length_of_its_own_and_is_told_of_while_others_are_sampled(files):
    model, prompts = small(files)
    longest = greedy(model, prompts, [-1], 12, 256)
    reported, passes = [], []
    model.register_forward_hook(lambda *_: passes.append(0))
    most = [12 - i % 5 for i in range(len(prompts))]
    answers = sample(
        model, prompts, max_tokens=most, stop_ids=[-1], temperature=0, batch_size=4,
        on_end=lambda *ended: reported.append((*ended, len(passes))),
    )  # fmt: skip
    assert answers == [answer[:n] for answer, n in zip(longest, most, strict=True)]
    assert [a for _, a in sorted((i, a) for i, a, _ in reported)] == answers  # each once
    (first, _, then), (*_, last) = reported[0], reported[-1]
    assert most[first] < 12
    assert then < last
