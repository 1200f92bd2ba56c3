"""Tokens a second of our engines against `transformers.generate`, on one checkpoint.

    python tests/bench/bench_generate.py [--requests 512]

Each engine runs in a process of its own, on the same requests and the same sampling. Prints one
JSON line; `ours` and `ratio` are vLLM's, starts are not in the rate but in `setup`.
"""

import argparse
import json
import os
import random
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

SAMPLING = Sampling(temperature=0.6, top_p=0.95, max_tokens=128)
BATCH = 128
PEER = "transformers.generate"
ENGINES = ("vllm", "transformers", PEER)


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


def with_generate(checkpoint: str, asked: list[Request]) -> tuple[int, float]:
    """The peer as its documentation has it: left-padded batches of like prompt length."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    asked = sorted(asked, key=lambda r: len(r.prompt))
    began, tokens = time.monotonic(), 0
    for start in range(0, len(asked), BATCH):
        chats = [[{"role": "user", "content": r.prompt}] for r in asked[start : start + BATCH]]
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


def with_engine(kind: str, checkpoint: str, asked: list[Request]) -> tuple[int, float]:
    from klear.training.engines.generate import make_engine

    runtime = EngineRuntime(batch_size=BATCH, gpu_memory_utilization=0.5)
    settings = EngineSettings(kind=kind, model=checkpoint, runtime=runtime)  # type: ignore[arg-type]
    with make_engine(settings, SAMPLING) as engine:
        began = time.monotonic()
        tokens = sum(s.completion_tokens for s in engine.answer(asked))
        return tokens, time.monotonic() - began


def measure(name: str, checkpoint: str, count: int) -> tuple[float, float]:
    """Tokens a second, and the seconds before the first."""
    asked, began = requests(count), time.monotonic()
    run = with_generate if name == PEER else partial(with_engine, name)
    tokens, seconds = run(checkpoint, asked)
    return tokens / seconds, time.monotonic() - began - seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=512)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        make_checkpoint(checkpoint)
        found = {n: in_a_process(measure, n, str(checkpoint), options.requests) for n in ENGINES}
    rates = {name: round(rate, 1) for name, (rate, _) in found.items()}
    ours = rates.pop("vllm")
    starts = ", ".join(f"{name} {start:.1f} s" for name, (_, start) in found.items())
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
