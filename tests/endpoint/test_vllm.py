"""A real `vllm serve` on CPU as teacher over HTTP, and vLLM offline, on one model."""

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import output_of
from vllm_server import ENVIRONMENT, TINY, VLLMServer, countdown_requests, tiny_teacher

from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.families import countdown
from klear.eval.records import Problem, Sample
from klear.eval.records.tables import read_table, write_table
from klear.flows.cli.main import main
from klear.tasks.answers.distill import distill
from klear.tasks.store.store import Artifact
from klear.training.engines.endpoint import EndpointEngine
from klear.training.engines.interface import Request

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = """
import json, sys
from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.training.engines.interface import Request
from klear.training.engines.generate import make_engine

checkpoint, lines = sys.argv[1:]
requests = [Request(**r) for r in json.loads(lines)]
runtime = EngineRuntime(dtype="float32", gpu_memory_utilization=0.3)
settings = EngineSettings(kind="vllm", model=checkpoint, yarn_factor=2.5, runtime=runtime)
with make_engine(settings, Sampling(max_tokens=12, temperature=0)) as engine:
    greedy = [s.model_dump() for s in engine.answer(requests)]
    engine.sampling = Sampling(max_tokens=12, temperature=1.0, top_k=50, repetition_penalty=1.1)
    drawn = [[s.model_dump() for s in engine.answer(asked)] for asked in (requests, requests[::-1])]
    rope = engine.engine.model_config.hf_config.rope_parameters
    print("FOUND" + json.dumps({"greedy": greedy, "drawn": drawn, "longest": engine.positions,
                                "rope": {"type": rope["rope_type"], "factor": rope["factor"]}}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return tiny_teacher(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def offline(checkpoint) -> dict[str, Any]:
    """What vLLM in a process of its own says to the requests, with the context stretched."""
    requests = json.dumps([r._asdict() for r in countdown_requests(8)])
    command = (sys.executable, "-c", OFFLINE, checkpoint, requests)
    environment = {**os.environ, **ENVIRONMENT, "TORCH_COMPILE_DISABLE": "1"}  # half of its time
    output = output_of(*command, cwd=ROOT, env=environment, timeout=480)
    line = next(x for x in output.splitlines() if x.startswith("FOUND"))
    return json.loads(line.removeprefix("FOUND"))


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory) -> Iterator[str]:
    """The URL of a server that knows the model as `tiny-teacher`."""
    with VLLMServer(checkpoint, tmp_path_factory.mktemp("serve") / "log") as running:
        yield running.url


def served(url: str, **more: Any) -> EngineSettings:
    runtime = EngineRuntime(concurrency=8, input_price=1.0, output_price=2.0)
    fields = {"model": "tiny-teacher", "api_key_env": "", "runtime": runtime, **more}
    return EngineSettings(kind="openai", base_url=url, **fields)


def texts(samples: Any) -> dict[str, tuple[str, int]]:
    return {s["problem_id"]: (s["text"], s["completion_tokens"]) for s in samples}


def test_yarn_reaches_vllm_offline_and_samples_depend_on_their_seed_alone(offline):
    assert offline["rope"] == {"type": "yarn", "factor": 2.5}
    assert offline["longest"] == 2.5 * TINY.max_positions
    forwards, backwards = map(texts, offline["drawn"])
    assert forwards == backwards
    assert forwards != texts(offline["greedy"])
    assert {s["finish_reason"] for s in offline["greedy"]} <= {"stop", "length", "empty"}


def test_distilling_from_a_served_model_fills_the_table_with_real_token_counts(server, tmp_path):
    rows = list(countdown.generate(random.Random(0), 6, "train"))
    write_table(tmp_path / "kept.parquet", Problem, rows)
    settings = SampleSettings(
        samples_per_prompt=4, engine=served(server), sampling=Sampling(max_tokens=16)
    )
    metrics = distill.body(tmp_path, Artifact.of_folder(tmp_path), settings=settings, seed=0)
    samples = list(read_table(tmp_path / "samples.parquet", Sample))
    assert [(s.problem_id, s.index) for s in samples] == [(p.id, i) for p in rows for i in range(4)]
    assert all(1 <= s.completion_tokens <= 16 and s.prompt_tokens > 10 for s in samples)
    paid = sum(s.prompt_tokens + 2 * s.completion_tokens for s in samples)
    assert metrics["cost"] == pytest.approx(paid / 1e6)
    cut = [s for s in samples if s.finish_reason == "length"]
    assert {s.completion_tokens for s in cut} <= {16}
    assert metrics["truncated"] == len(cut)


def test_a_prompt_longer_than_the_context_is_marked_and_the_others_are_answered(server):
    long = Request(problem_id="long", index=0, prompt="12 " * 400)
    engine = EndpointEngine(served(server), Sampling(max_tokens=8))
    reasons = {s.problem_id: s.finish_reason for s in engine.answer([long, *countdown_requests(3)])}
    assert reasons.pop("long") == "error"
    assert len(reasons) == 3
    assert "error" not in reasons.values()


def test_klear_eval_scores_the_served_model_and_names_what_is_served(
    server, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "bench.jsonl"
    file.write_text("".join(p.model_dump_json() + "\n" for p in
                            countdown.generate(random.Random(1), 3, "test")))  # fmt: skip
    short = ["--set", "evaluate.sampling.max_tokens=16"]
    more = ["--bench", str(file), *short]
    assert main(["eval", server, "--k", "2", *more]) == 0
    assert "tiny-teacher (at http://127.0.0.1" in capsys.readouterr().out
    assert main(["eval", server, "--model", "r1", *more]) == 1
    assert "it serves: tiny-teacher" in capsys.readouterr().err
