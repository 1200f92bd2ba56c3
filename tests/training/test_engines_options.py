"""Options beyond the paper's protocol, templates that open the think block, YaRN, replicas."""

import json
import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.engines import EngineRuntime, EngineSettings, Sampling
from configs.training_stages import BaseModelSettings
from eval.families import countdown
from eval.records import Sample
from training.engines import local, vllm_engine
from training.engines.answers import load_tokenizer_and_config
from training.engines.interface import EngineError, Request, request_seed
from training.engines.journal import Journal
from training.engines.local import generate_job, journal_path
from training.engines.make import make_local_engine
from training.engines.replicas import any_alive, devices
from training.engines.vllm_engine import (
    VLLMEngine,
    llm_arguments,
    refuse_to_cut,
)
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


def settings(checkpoint: Path, **more: Any) -> EngineSettings:
    runtime = EngineRuntime(**{"batch_size": 3, **more.pop("runtime", {})})
    return EngineSettings(kind="transformers", model=str(checkpoint), runtime=runtime, **more)


def requests(count: int = 11) -> list[Request]:
    problems = countdown.generate(random.Random(0), count, "train")
    return [
        Request(problem_id=p.id, index=0, prompt=p.prompt, seed=request_seed(0, p.id, 0))
        for p in problems
    ]


def drawn(checkpoint: Path, **sampling: Any) -> list[str]:
    protocol = Sampling(**{"max_tokens": 8, "temperature": 1.0, "top_p": 1.0, **sampling})
    with make_local_engine(settings(checkpoint), protocol) as engine:
        found = {s.problem_id: s.text for s in engine.answer(requests(6))}
    return [found[r.problem_id] for r in requests(6)]


def test_top_k_one_is_greedy_and_a_wide_top_k_is_not(checkpoint):
    greedy = drawn(checkpoint, temperature=0)
    assert drawn(checkpoint, top_k=1) == greedy
    assert drawn(checkpoint, top_k=200) != greedy
    assert drawn(checkpoint, top_k=200) == drawn(checkpoint, top_k=200)


def test_a_repetition_penalty_changes_greedy_answers_and_one_does_not(checkpoint):
    greedy = drawn(checkpoint, temperature=0)
    assert drawn(checkpoint, temperature=0, repetition_penalty=1.0) == greedy
    assert drawn(checkpoint, temperature=0, repetition_penalty=5.0) != greedy


def test_both_options_are_off_unless_they_are_asked_for():
    assert (Sampling().top_k, Sampling().repetition_penalty) == (None, None)


@pytest.mark.parametrize(
    ("tail", "prefill"),
    [
        ("", ""),
        ("<think>\\n", "<think>\n"),
        ("<think>\\n\\n</think>\\n\\n", "<think>\n\n</think>\n\n"),
    ],
)
def test_what_the_template_writes_of_the_answer_is_judged_with_it(
    checkpoint, tmp_path, tail, prefill
):
    """Templates of R1 and its distillations open the think block; Qwen3's can close it, too."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    template = folder / "chat_template.jinja"
    turn = "<|im_start|>assistant\\n"
    assert turn in template.read_text()
    template.write_text(template.read_text().replace(turn, turn + tail))
    with make_local_engine(settings(folder), Sampling(max_tokens=4)) as engine:
        (sample,) = engine.answer(requests(1))
    assert sample.text.startswith(prefill)
    assert sample.text.startswith("<think>") == bool(prefill)


def test_the_settings_reach_vllm_in_its_words(checkpoint):
    """§4.3: 64K of inference with YaRN 2.5 on a model trained at 32K."""
    runtime = EngineRuntime(tensor_parallel=4, pipeline_parallel=2, max_model_len=70_000)
    engine = EngineSettings(kind="vllm", model=str(checkpoint), yarn_factor=2.5, runtime=runtime)
    _, config, _ = load_tokenizer_and_config(engine)
    found = llm_arguments(engine, config)
    assert (found["tensor_parallel_size"], found["pipeline_parallel_size"]) == (4, 2)
    assert found["max_model_len"] == 70_000
    assert found["generation_config"] == "vllm"
    assert found["hf_overrides"]["max_position_embeddings"] == 2.5 * 128
    rope = found["hf_overrides"]["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("yarn", 2.5)
    assert rope["original_max_position_embeddings"] == 128
    plain = engine.model_copy(update={"yarn_factor": None})
    assert llm_arguments(plain, config)["hf_overrides"] == {}


def job(checkpoint: Path, out: Path, replicas: int) -> GenerateJob:
    out.mkdir(exist_ok=True)
    file = out / "requests.jsonl"
    file.write_text("".join(r.model_dump_json() + "\n" for r in requests()))
    return GenerateJob(
        out=out,
        engine=settings(checkpoint, runtime={"data_parallel": replicas}),
        sampling=Sampling(max_tokens=12, temperature=1.0, top_p=1.0),
        requests=file,
    )


def results(out: Path) -> list[Sample]:
    with Journal(journal_path(out)) as journal:
        return list(journal.samples((r.problem_id, r.index) for r in requests()))


def test_two_replicas_share_the_work_and_end_with_the_samples_of_one(checkpoint, tmp_path):
    generate_job(job(checkpoint, tmp_path / "one", 1))
    metrics = generate_job(job(checkpoint, tmp_path / "two", 2))
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert metrics["new_samples"] == 11
    shares = []
    for number in (0, 1):
        with Journal(journal_path(tmp_path / "two" / ".resume" / f"replica-{number}")) as share:
            shares.append(len(share))
    assert shares == [3 + 3, 3 + 2]  # batches of 3 in turn


def test_what_replicas_of_a_killed_run_had_finished_is_taken_over(
    checkpoint, tmp_path, monkeypatch
):
    generate_job(job(checkpoint, tmp_path / "one", 1))
    expected = results(tmp_path / "one")
    for number, share in ((0, expected[:5]), (2, expected[5:])):
        left = tmp_path / "two" / ".resume" / f"replica-{number}"
        with Journal(journal_path(left)) as journal:
            for sample in share:
                journal.append(sample)
    monkeypatch.setattr(local, "make_local_engine", lambda *_: pytest.fail("started"))
    for replicas in (1, 3):
        generate_job(job(checkpoint, tmp_path / "two", replicas))
        assert results(tmp_path / "two") == expected


def test_a_failing_replica_ends_the_job_with_its_log(checkpoint, tmp_path):
    asked = job(checkpoint, tmp_path / "o", 2)
    fine, failed = (subprocess.Popen(["sh", "-c", f"exit {code}"]) for code in (0, 3))
    log = tmp_path / "o" / ".resume" / "replica-1" / "child.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\nout of memory\n")
    fine.wait(), failed.wait()
    with pytest.raises(EngineError, match=r"(?s)replica 1 ended with code 3.*out of memory"):
        any_alive([fine, failed], asked)


def test_each_replica_gets_its_own_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    runtime = EngineRuntime(tensor_parallel=2, pipeline_parallel=2)
    found = [devices(n, 2, runtime)["CUDA_VISIBLE_DEVICES"] for n in (0, 1)]
    assert found == ["0,1,2,3", "4,5,6,7"]
    with pytest.raises(EngineError, match="needs 12 GPUs; there are 8"):
        devices(0, 3, runtime)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert devices(0, 2, runtime) == {}


def test_progress_and_curves_of_a_job_hold_tokens_and_speed(checkpoint, tmp_path):
    generate_job(job(checkpoint, tmp_path / "o", 1))
    tokens = sum(s.completion_tokens for s in results(tmp_path / "o"))
    progress = json.loads((tmp_path / "o" / ".resume" / "progress.json").read_text())
    assert f"{tokens:,} tokens" in progress["note"]
    line = (tmp_path / "o" / "logs" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["metrics"]["generated/tokens"] == tokens
    assert os.path.getsize(journal_path(tmp_path / "o")) > 0


@pytest.mark.parametrize("replicas", [1, 2])
def test_answers_of_an_earlier_round_do_not_stand_for_those_of_this_one(
    checkpoint, tmp_path, replicas
):
    """Rounds share a journal: 12 answers are there already, to other requests than these 11."""
    second = job(checkpoint, tmp_path / "o", replicas)
    with Journal(journal_path(second.out)) as journal:
        for i in range(12):
            journal.append(Sample(problem_id=f"round one, {i}", index=0, model="m", text="t"))
    assert generate_job(second)["new_samples"] == 11
    assert len(results(second.out)) == 11
    progress = json.loads((second.out / ".resume" / "progress.json").read_text())
    assert (progress["done"], progress["total"]) == (11, 11)


def vllm_of(checkpoint: Path, monkeypatch, limit: int | None, **sampling: Any) -> VLLMEngine:
    """An engine of 128 positions (or `limit`) whose vLLM is not started."""
    config = SimpleNamespace(max_model_len=limit or 128)
    monkeypatch.setattr(vllm_engine, "_load", lambda *_: SimpleNamespace(
        model_config=config, llm_engine=None))  # fmt: skip
    runtime = EngineRuntime(max_model_len=limit)
    asked = EngineSettings(kind="vllm", model=str(checkpoint), runtime=runtime)
    return VLLMEngine(asked, Sampling(**sampling))


def test_a_length_of_ours_never_cuts_an_answer(checkpoint, monkeypatch):
    engine = vllm_of(checkpoint, monkeypatch, 100, max_tokens=90)
    with pytest.raises(EngineError, match=r"max_model_len=100 would cut answers.*max_tokens=90"):
        next(engine.answer(requests(1)))
    refuse_to_cut(10, 90, limit=100, positions=128)  # fits
    refuse_to_cut(90, 90, limit=128, positions=128)  # the model ends there, too
    with pytest.raises(EngineError, match="need 101"):
        refuse_to_cut(11, 90, limit=100, positions=128)
    with pytest.raises(EngineError, match="need 128"):
        refuse_to_cut(90, 90, limit=127, positions=128)


def test_where_the_model_itself_ends_an_answer_the_log_says_so(checkpoint, monkeypatch, capsys):
    engine = vllm_of(checkpoint, monkeypatch, None, max_tokens=90)
    long = [Request(problem_id=f"p{i}", index=0, prompt="12 " * 200) for i in range(2)]
    assert [s.finish_reason for s in engine.answer(long)] == ["error", "error"]
    assert capsys.readouterr().err.count("has 128 positions") == 1  # once is enough
