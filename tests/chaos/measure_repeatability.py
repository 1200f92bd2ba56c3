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
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from configs.settings.training import BaseModelSettings
from eval.families import countdown
from training.engines.interface import Engine, Request, request_seed

ROOT = Path(__file__).resolve().parents[2]
MODEL = BaseModelSettings(
    kind="random", hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, mlp=64, vocabulary=320,
    max_positions=256, initializer_range=0.3,
)  # fmt: skip
TOKENS = 48
TEMPERATURES = (0.0, 1.0)
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "OMP_NUM_THREADS": "1"}  # fmt: skip
Texts = dict[str, str]
Answer = Callable[[list[Request]], Texts]


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


def ways(answer: Answer, asked: list[Request]) -> dict[str, Texts]:
    """The same requests: all together, again, in the other order, in small groups, alone."""
    groups = [asked[i : i + 5] for i in range(0, len(asked), 5)]
    return {
        "together": answer(asked),
        "again": answer(asked),
        "reversed": answer(asked[::-1]),
        "fives": {k: t for group in groups for k, t in answer(group).items()},
        "alone": {k: t for r in asked for k, t in answer([r]).items()},
    }


def differing(found: dict[str, Texts]) -> dict[str, float]:
    """The share of completions of each way that are not those of the first."""
    first = found["together"]
    return {
        way: sum(texts[k] != first[k] for k in first) / len(first)
        for way, texts in found.items()
        if way != "together"
    }


def measure(kind: str, dtype: str, model: str, count: int) -> dict[str, dict[str, float]]:
    """T → way → share; in this process."""
    from training.engines.generate import make_engine

    runtime = EngineRuntime(dtype=dtype, batch_size=count, gpu_memory_utilization=0.3)  # type: ignore[arg-type]
    settings = EngineSettings(kind=kind, model=model, runtime=runtime)  # type: ignore[arg-type]
    shares = {}
    with make_engine(settings, Sampling(max_tokens=TOKENS)) as engine:
        for temperature in TEMPERATURES:
            sampling = Sampling(max_tokens=TOKENS, temperature=temperature, top_p=1.0)
            shares[f"T={temperature:g}"] = differing(ways(_by(engine, sampling), requests(count)))
    return shares


def _by(engine: Engine, sampling: Sampling) -> Answer:
    def answer(asked: list[Request]) -> Texts:
        engine.sampling = sampling  # type: ignore[attr-defined]
        return {s.problem_id: s.text for s in engine.answer(asked)}

    return answer


def in_a_process(kind: str, dtype: str, model: Path, count: int) -> dict[str, dict[str, float]]:
    """As `measure`; vLLM and its settings want a process of their own."""
    words = ["--inside", kind, "--dtype", dtype, "--model", str(model), "--prompts", str(count)]
    done = subprocess.run(
        [sys.executable, __file__, *words], cwd=ROOT, env={**os.environ, **ENVIRONMENT},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{kind} in {dtype}:\n{done.stderr[-3000:]}")
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("FOUND")]
    return json.loads(line.removeprefix("FOUND"))


def main() -> int:
    parser = argparse.ArgumentParser(description="What is not repeatable on this machine.")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--engines", nargs="+", default=["transformers", "vllm"])
    parser.add_argument("--inside", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", default="")
    wanted = parser.parse_args()
    if wanted.inside:
        found = measure(wanted.inside, wanted.dtype, wanted.model, wanted.prompts)
        print("FOUND" + json.dumps(found))
        return 0
    shares = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / "model")
        for kind in wanted.engines:
            for dtype in ("float32", "bfloat16"):
                found = in_a_process(kind, dtype, Path(folder) / "model", wanted.prompts)
                shares[f"{kind} {dtype}"] = found
                for temperature, ways_of in found.items():
                    figures = "  ".join(f"{way} {share:6.1%}" for way, share in ways_of.items())
                    print(f"{kind:13}{dtype:10}{temperature:5}  {figures}", flush=True)
    print(json.dumps({"bench": "repeatability", "prompts": wanted.prompts, "differing": shares}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
