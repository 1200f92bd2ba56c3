"""Tokens a second of our engines against `transformers.generate`, on one checkpoint.

    python tests/bench/bench_generate.py [--requests 512]
    python tests/bench/bench_generate.py --model smollm2 [--dtype bfloat16] [--threads 1]

The first is a random model of the tiny profile. The second is SmolLM2-135M-Instruct with prompts of
50 to 400 tokens, 32 and 64 of them at once, at top_p 1 and 0.95, `transformers` against vLLM.
Each engine runs in a process of its own, on the same requests and the same sampling. Prints JSON
lines; starts are not in the rates but in `setup`. `cpu` has the rates by processor time, for a
machine that others use as well.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from own_process import in_a_process

from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.configs.settings.training import BaseModelSettings
from klear.eval.families import by_example, countdown
from klear.training.engines.interface import Request, request_seed

sys.path.append(str(Path(__file__).resolve().parents[1]))
from smollm2 import smollm2

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=128)
BATCH = 128
PEER = "transformers.generate"
ENGINES = ("vllm", "transformers", PEER)
CELLS = ((32, 1.0), (32, 0.95), (64, 1.0), (64, 0.95))  # rows, top_p


def requests(count: int) -> list[Request]:
    rng = random.Random(0)
    halves = (f.generate(rng, count // 2, "test") for f in (countdown, by_example))
    return [
        Request(problem_id=p.id, index=0, prompt=p.prompt, seed=request_seed(0, p.id, 0))
        for half in halves
        for p in half
    ]


def make_checkpoint(folder: Path) -> None:
    """A random model of the tiny profile: it seldom ends an answer, so lengths are near equal."""
    from klear.training.base import small_model, small_tokenizer
    from klear.training.models import save_model

    tokenizer = small_tokenizer([r.prompt for r in requests(200)], 400)
    save_model(small_model(BaseModelSettings(kind="random"), tokenizer, 0), tokenizer, folder)


def with_generate(checkpoint: str, requests: list[Request]) -> tuple[int, float]:
    """The peer as its documentation has it: left-padded batches of like prompt length."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    requests = sorted(requests, key=lambda r: len(r.prompt))
    began, tokens = time.monotonic(), 0
    for start in range(0, len(requests), BATCH):
        chats = [[{"role": "user", "content": r.prompt}] for r in requests[start : start + BATCH]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(
            **inputs, do_sample=True, temperature=SAMPLING.temperature, top_p=SAMPLING.top_p,
            top_k=0, max_new_tokens=SAMPLING.max_tokens,
        )  # fmt: skip
        ends = (out[:, inputs["input_ids"].shape[1] :] == tokenizer.eos_token_id).int()
        tokens += int((ends.cumsum(-1) - ends == 0).sum())
    return tokens, time.monotonic() - began


def with_engine(kind: str, checkpoint: str, requests: list[Request]) -> tuple[int, float]:
    from klear.training.engines.generate import make_engine

    runtime = EngineRuntime(batch_size=BATCH, gpu_memory_utilization=0.5)
    settings = EngineSettings(kind=kind, model=checkpoint, runtime=runtime)  # type: ignore[arg-type]
    with make_engine(settings, SAMPLING) as engine:
        began = time.monotonic()
        tokens = sum(s.completion_tokens for s in engine.answer(requests))
        return tokens, time.monotonic() - began


def measure(name: str, checkpoint: str, count: int) -> tuple[float, float]:
    """Tokens a second, and the seconds before the first."""
    batch, began = requests(count), time.monotonic()
    run = with_generate if name == PEER else partial(with_engine, name)
    tokens, seconds = run(checkpoint, batch)
    return tokens / seconds, time.monotonic() - began - seconds


def texts_of_unequal_length(count: int) -> list[Request]:
    """Prompts of 50 to 400 tokens: sums to work out, of a few words each."""
    rng = random.Random(0)
    sizes = [2 + 43 * n // max(1, count - 1) for n in range(count)]
    return [
        Request(problem_id=str(n), index=0, seed=n, prompt="Work out these sums one by one: "
                + ", ".join(f"{rng.randint(10, 99)} plus {rng.randint(10, 99)}" for _ in range(k)))
        for n, k in enumerate(sizes)
    ]  # fmt: skip


def cpu_seconds(tree: int) -> float:
    """Of a process, and of those it has started and that still run."""
    import psutil

    process = psutil.Process(tree)
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


def measure_cells(kind: str, checkpoint: str, dtype: str, threads: int, tokens: int) -> Any:
    """[tokens a second, tokens a second of processor time] of each cell; seconds of the start."""
    import torch

    from klear.training.engines.generate import make_engine

    torch.set_num_threads(threads)
    runtime = EngineRuntime(batch_size=64, dtype=dtype, gpu_memory_utilization=0.2)  # type: ignore[arg-type]
    settings = EngineSettings(kind=kind, model=checkpoint, runtime=runtime)  # type: ignore[arg-type]
    rates, began = [], time.monotonic()
    with make_engine(settings, Sampling(max_tokens=tokens)) as engine:
        list(engine.answer(texts_of_unequal_length(2)))
        start = time.monotonic() - began
        for rows, top_p in CELLS:
            engine.sampling = Sampling(temperature=1.0, top_p=top_p, max_tokens=tokens)
            texts = texts_of_unequal_length(rows)
            at, cpu = time.monotonic(), cpu_seconds(os.getpid())
            count = sum(s.completion_tokens for s in engine.answer(texts))
            wall = time.monotonic() - at
            rates.append([count / wall, count / (cpu_seconds(os.getpid()) - cpu)])
            print(kind, rows, top_p, count, rates[-1], file=sys.stderr, flush=True)
    return rates, start


def bench_smollm2(dtype: str, threads: int, tokens: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if threads == 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = str(smollm2(Path(scratch) / "smollm2", dtype=dtype))
        cells = {
            kind: in_a_process(measure_cells, kind, checkpoint, dtype, threads, tokens)
            for kind in ("transformers", "vllm")
        }
    (ours, our_start), (theirs, their_start) = cells["transformers"], cells["vllm"]
    for (rows, top_p), own, peer in zip(CELLS, ours, theirs, strict=True):
        line = {
            "bench": "generate smollm2", "ours": round(own[0], 1), "peer": round(peer[0], 1),
            "unit": "tokens/s", "ratio": round(own[0] / peer[0], 2),
            "cpu": [round(own[1], 1), round(peer[1], 1), round(own[1] / peer[1], 2)],
            "setup": f"transformers against vllm; {rows} rows, prompts of 50 to 400 tokens, "
            f"{tokens} tokens each, top_p {top_p:g}, {dtype}, {threads} of {os.cpu_count()} cores; "
            f"starts {our_start:.0f} s, {their_start:.0f} s",
        }  # fmt: skip
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--model", choices=("tiny", "smollm2"), default="tiny")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    if options.model == "smollm2":
        return bench_smollm2(options.dtype, options.threads, options.tokens)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        make_checkpoint(checkpoint)
        speeds = {n: in_a_process(measure, n, str(checkpoint), options.requests) for n in ENGINES}
    rates = {name: round(rate, 1) for name, (rate, _) in speeds.items()}
    ours = rates.pop("vllm")
    starts = ", ".join(f"{name} {start:.1f} s" for name, (_, start) in speeds.items())
    line = {
        "bench": "generate",
        "ours": ours,
        "peer": rates,
        "unit": "tokens/s",
        "ratio": round(ours / rates[PEER], 2),
        "setup": f"vllm against {PEER}; {options.requests} requests, up to "
        f"{SAMPLING.max_tokens} tokens, batch {BATCH}, {os.cpu_count()} cores; starts: {starts}",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
