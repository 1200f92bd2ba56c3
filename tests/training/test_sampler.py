"""Sampling without finished rows gives what `generate` gives."""

from typing import Any

import torch

from klear.training.checkpoints import load_model, load_tokenizer
from klear.training.engines.transformers_engine import draw, sample
from klear.training.render import prompt_ids


def small(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    prompts = prompt_ids(tokenizer, ["Make 5 from 1, 2, 3.", "Make 77 from 7, 7, 11.", "p"] * 3)
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


def test_greedy_answers_are_those_of_generate_one_by_one(files):
    model, prompts = small(files)
    first = greedy(model, prompts, [-1], 12, 256)  # nothing stops
    stops = sorted({answer[4] for answer in first})  # so that rows end at different places
    answers = greedy(model, prompts, stops, 12, 256)
    assert len({len(a) for a in answers}) > 1
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12,
            eos_token_id=stops, pad_token_id=0,
        )  # fmt: skip
        assert out[0, len(prompt) :].tolist() == answer


def test_top_p_never_draws_from_the_tail():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2_000, 1)
    generator = torch.Generator().manual_seed(0)
    assert set(draw(logits, 1.0, 0.75, generator).tolist()) == {0, 1}
    assert set(draw(logits, 1.0, 1.0, generator).tolist()) == {0, 1, 2, 3}


def test_every_answer_may_have_a_length_of_its_own(files):
    model, prompts = small(files)
    whole = greedy(model, prompts, [-1], 12, 256)
    most = [1 + i % 5 for i in range(len(prompts))]
    found = greedy(model, prompts, [-1], most, 4)
    assert found == [answer[:n] for answer, n in zip(whole, most, strict=True)]
