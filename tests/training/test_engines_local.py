"""Local generation with a real, very small model: answers, ends, seeds, and resuming a job."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from configs.engines import EngineRuntime, EngineSettings, Sampling
from configs.training_stages import BaseModelSettings
from eval.families import countdown
from eval.records import Sample
from training.engines import local
from training.engines.answers import make_sample, yarn_parameters
from training.engines.interface import EngineError, Request, request_seed
from training.engines.journal import Journal
from training.engines.local import generate_job, journal_path
from training.engines.make import make_local_engine
from training.jobs import GenerateJob

TINY = BaseModelSettings(
    kind="random", hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp=16, vocabulary=280,
    max_positions=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    from training.base import small_model, small_tokenizer
    from training.checkpoints import save_model

    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    tokenizer = small_tokenizer(["user\nMake 1 from 2, 3, 4.\nassistant\n<think>"], 280)
    save_model(small_model(TINY, tokenizer, 0), tokenizer, folder)
    return folder


def settings(checkpoint: Path, **more) -> EngineSettings:
    runtime = EngineRuntime(batch_size=4)
    return EngineSettings(
        kind="transformers", model=str(checkpoint), **{"runtime": runtime, **more}
    )


def requests(count: int = 11) -> list[Request]:
    problems = countdown.generate(random.Random(0), count, "train")
    return [
        Request(problem_id=p.id, index=0, prompt=p.prompt, seed=request_seed(0, p.id, 0))
        for p in problems
    ]


def job(checkpoint: Path, out: Path, **more) -> GenerateJob:
    out.mkdir(exist_ok=True)
    file = out / "requests.jsonl"
    file.write_text("".join(r.model_dump_json() + "\n" for r in requests()))
    return GenerateJob(
        out=out,
        engine=settings(checkpoint, **more),
        sampling=Sampling(max_tokens=12, temperature=1.0, top_p=1.0),
        requests=file,
    )


def results(out: Path) -> list[Sample]:
    with Journal(journal_path(out)) as journal:
        return list(journal.samples((r.problem_id, r.index) for r in requests()))


def test_every_request_of_a_job_is_answered_once_with_progress(checkpoint, tmp_path):
    metrics = generate_job(job(checkpoint, tmp_path / "o"))
    got = results(tmp_path / "o")
    assert len(got) == metrics["new_samples"] == 11
    assert metrics["new_tokens"] == sum(s.completion_tokens for s in got)
    assert all(1 <= s.completion_tokens <= 12 for s in got)
    assert all(s.prompt_tokens > 10 for s in got)
    progress = json.loads((tmp_path / "o" / ".resume" / "progress.json").read_text())
    assert (progress["done"], progress["total"]) == (11, 11)


def test_a_job_killed_in_the_middle_of_a_batch_ends_with_the_samples_of_a_whole_run(
    checkpoint, tmp_path
):
    generate_job(job(checkpoint, tmp_path / "whole"))
    expected = results(tmp_path / "whole")
    lines = journal_path(tmp_path / "whole").read_bytes().splitlines(keepends=True)
    torn = job(checkpoint, tmp_path / "torn")
    journal_path(tmp_path / "torn").parent.mkdir()
    journal_path(tmp_path / "torn").write_bytes(b"".join(lines[:6]) + lines[6][:9])
    metrics = generate_job(torn)
    assert results(tmp_path / "torn") == expected
    assert metrics["new_samples"] == 11 - 4  # one batch of four was whole


def test_a_finished_job_starts_no_engine(checkpoint, tmp_path, monkeypatch):
    generate_job(job(checkpoint, tmp_path / "o"))
    monkeypatch.setattr(local, "make_local_engine", lambda *_: pytest.fail("started"))
    assert generate_job(job(checkpoint, tmp_path / "o"))["new_samples"] == 0


def test_temperature_zero_ignores_seeds_and_sampling_does_not(checkpoint):
    def texts(temperature: float, seed: int) -> list[str]:
        sampling = Sampling(max_tokens=8, temperature=temperature)
        asked = [r.model_copy(update={"seed": r.seed + seed}) for r in requests(4)]
        with make_local_engine(settings(checkpoint), sampling) as engine:
            return [s.text for s in engine.answer(asked)]

    assert texts(0, 0) == texts(0, 1)
    assert texts(1, 0) == texts(1, 0) != texts(1, 1)


def test_the_engine_agrees_with_generate_at_temperature_zero(checkpoint):
    """The peer: transformers' own greedy search on one prompt at a time, without padding."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from training.render import prompt_ids

    model = AutoModelForCausalLM.from_pretrained(str(checkpoint)).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(checkpoint))
    with make_local_engine(settings(checkpoint), Sampling(max_tokens=8, temperature=0)) as engine:
        ours = {s.problem_id: s for s in engine.answer(requests(6))}
    for r in requests(6):
        ids = torch.tensor(prompt_ids(tokenizer, [r.prompt]))
        out = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        text = tokenizer.decode(out, skip_special_tokens=True)
        assert ours[r.problem_id].text == text
        assert ours[r.problem_id].completion_tokens == len(out)


class Letters:
    """A tokenizer of one letter a token; id 0 is the end."""

    def batch_decode(self, rows, **_):
        return ["".join(chr(96 + i) for i in row) for row in rows]


@pytest.mark.parametrize(
    ("ids", "text", "finish"),
    [([1, 2, 0], "ab", "stop"), ([1, 2], "ab", "length"), ([0], "", "empty")],
)
def test_how_an_answer_ended_follows_from_its_tokens(ids, text, finish):
    request = Request(problem_id="p", index=3, prompt="?")
    s = EngineSettings(kind="transformers", model="m")
    sample = make_sample(request, s, Letters(), 5, ids, (0,), "<think>\n")  # type: ignore[arg-type]
    assert (sample.text, sample.finish_reason) == ("<think>\n" + text, finish)
    assert (sample.index, sample.prompt_tokens, sample.completion_tokens) == (3, 5, len(ids))


@pytest.mark.parametrize("options", [{}, {"top_k": 100}])
def test_answers_end_at_the_models_positions_and_the_log_says_so(checkpoint, capsys, options):
    """Of prompts in one batch each has the room that its own length leaves, with either loop."""
    prompts = [Request(problem_id=str(n), index=0, prompt="7 " * n) for n in (1, 40)]
    greedy = Sampling(max_tokens=200, temperature=0.0, **options)
    engine: Any
    with make_local_engine(settings(checkpoint), greedy) as engine:
        engine.ends = (engine.config.vocab_size - 1,)  # never the likeliest: only positions end it
        got = list(engine.answer(prompts))
    assert [s.prompt_tokens + s.completion_tokens for s in got] == [128, 128]
    assert len({s.prompt_tokens for s in got}) == 2
    assert {s.finish_reason for s in got} == {"length"}
    assert capsys.readouterr().err.count("has 128 positions") == 1


def test_a_prompt_without_room_for_an_answer_is_marked_and_costs_the_others_nothing(
    checkpoint, tmp_path
):
    whole, with_long = job(checkpoint, tmp_path / "whole"), job(checkpoint, tmp_path / "long")
    long = Request(problem_id="long", index=0, prompt="12 " * 200)
    with with_long.requests.open("a") as lines:
        lines.write(long.model_dump_json() + "\n")
    generate_job(whole)
    generate_job(with_long)
    with Journal(journal_path(with_long.out)) as journal:
        (marked,) = journal.samples([("long", 0)])
        assert (marked.finish_reason, marked.text) == ("error", "")
        assert marked.prompt_tokens >= 128
        assert len(journal) == 1 + len(results(tmp_path / "whole"))


def test_when_no_prompt_fits_the_run_fails_in_one_line(checkpoint, tmp_path):
    only_long = job(checkpoint, tmp_path / "o")
    long = Request(problem_id="long", index=0, prompt="12 " * 200)
    only_long.requests.write_text(long.model_dump_json() + "\n")
    with pytest.raises(EngineError, match="has no room for an answer: the shortest of 1 prompts"):
        generate_job(only_long)


def test_yarn_stretches_the_context_by_its_factor(checkpoint):
    """§4.3: 32K x 2.5 = 80K positions, interpolated from the trained 32K."""

    class Config:
        max_position_embeddings = 32_768
        rope_parameters = {"rope_type": "default", "rope_theta": 1e6}  # noqa: RUF012

    assert yarn_parameters(Config, 2.5) == {
        "max_position_embeddings": 81_920,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 2.5,
            "original_max_position_embeddings": 32_768,
        },
    }
    with make_local_engine(settings(checkpoint, yarn_factor=2.0), Sampling()) as engine:
        got = list(engine.answer(requests(2)))
    assert 128 < max(s.prompt_tokens + s.completion_tokens for s in got) <= 256


def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"engine model=.*nowhere cannot be loaded"):
        make_local_engine(settings(tmp_path / "nowhere"), Sampling())
