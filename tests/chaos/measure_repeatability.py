"""What is not repeatable on this machine: `python tests/chaos/measure_repeatability.py`.

The same requests with the same seeds, answered by one model in other company: other batch sizes,
the other order, one by one. Printed is the share of completions that differ from the first way, at
T = 0 and at T = 1, for each engine and precision. Data stages and training on one CPU are not here:
they repeat bit by bit, and tests hold them to it.
"""

import argparse
import json
import os
import random
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from configs.settings.training import BaseModelSettings
from eval.families import countdown
from training.engines.interface import Request, request_seed

MODEL = BaseModelSettings(
    kind="random", hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, mlp=64, vocabulary=320,
    max_positions=256, initializer_range=0.3,
)  # fmt: skip
TOKENS = 48
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": "1"}  # fmt: skip


def requests(count: int) -> list[Request]:
    problems = countdown.generate(random.Random(0), count, "train")
    return [
        Request(problem_id=p.id, index=0, prompt=p.prompt, seed=request_seed(0, p.id, 0))
        for p in problems
    ]


def make_model(folder: Path) -> None:
    from training.checkpoints.base import small_model, small_tokenizer
    from training.checkpoints.saving import save_model

    texts = [f"user\n{r.prompt}\nassistant\n<think>" for r in requests(200)]
    tokenizer = small_tokenizer(texts, MODEL.vocabulary)
    save_model(small_model(MODEL, tokenizer, 0), tokenizer, folder)


def differing(engine: Any, asked: list[Request]) -> dict[str, float]:
    """The share of completions of each way to ask that are not those of all together."""

    def answer(groups: Iterable[list[Request]]) -> dict[str, str]:
        return {s.problem_id: s.text for group in groups for s in engine.answer(group)}

    first = answer([asked])
    ways = {
        "again": [asked],
        "reversed": [asked[::-1]],
        "fives": [asked[i : i + 5] for i in range(0, len(asked), 5)],
        "alone": [[request] for request in asked],
    }
    found = {way: answer(groups) for way, groups in ways.items()}
    return {
        way: sum(texts[k] != first[k] for k in first) / len(first) for way, texts in found.items()
    }


def measure(kind: Any, dtype: Any, model: Path, count: int) -> dict[str, dict[str, float]]:
    """Temperature → way → share; in a process of its own, for vLLM and its settings want one."""
    from training.engines.generate import make_engine

    runtime = EngineRuntime(dtype=dtype, batch_size=count, gpu_memory_utilization=0.3)
    settings = EngineSettings(kind=kind, model=str(model), runtime=runtime)
    shares = {}
    with make_engine(settings, Sampling(max_tokens=TOKENS)) as made:
        engine: Any = made
        for temperature in (0.0, 1.0):
            engine.sampling = Sampling(max_tokens=TOKENS, temperature=temperature, top_p=1.0)
            shares[f"T={temperature:g}"] = differing(engine, requests(count))
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description="What is not repeatable on this machine.")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--engines", nargs="+", default=["transformers", "vllm"])
    wanted = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    shares = {}
    alone = {"mp_context": get_context("spawn"), "max_tasks_per_child": 1, "max_workers": 1}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(**alone) as process:
        model = Path(folder) / "model"
        make_model(model)
        for kind in wanted.engines:
            for dtype in ("float32", "bfloat16"):
                found = process.submit(measure, kind, dtype, model, wanted.prompts).result()
                shares[f"{kind} {dtype}"] = found
                for temperature, ways in found.items():
                    figures = "  ".join(f"{way} {share:6.1%}" for way, share in ways.items())
                    print(f"{kind:13}{dtype:10}{temperature:5}  {figures}", flush=True)
    print(json.dumps({"bench": "repeatability", "prompts": wanted.prompts, "differing": shares}))


if __name__ == "__main__":
    main()
