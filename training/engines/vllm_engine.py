"""Sampling with vLLM in this process: requests are handed in as there is room, in any order.

Every request has its own seed, so a sample does not depend on what it is batched with, up to the
rounding of the kernels.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Self

from configs.engines import EngineSettings, Sampling
from eval.records import Sample
from training.engines.answers import load_tokenizer_and_config, make_sample, yarn_parameters
from training.engines.interface import EngineError, Request
from training.render import prompt_ids

CPU_CACHE_GB = 1
PROMPTS_AT_ONCE = 256
WAITING = 1024
"""Requests in the engine: enough that it never waits for us."""


class VLLMEngine:
    """vLLM's offline engine, one process, tensor parallel over the GPUs it is given."""

    whole_batches = False

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling
        self.tokenizer, config, self.ends = load_tokenizer_and_config(settings)
        self.llm = _load(settings, config)
        self.longest: int = self.llm.model_config.max_model_len

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        engine = self.llm.llm_engine
        del self.llm
        core = getattr(engine, "engine_core", None)
        if core is not None:
            core.shutdown()

    def batches(self, requests: list[Request]) -> Iterator[list[Request]]:
        yield requests

    def answer(self, requests: Iterable[Request]) -> Iterator[Sample]:
        engine: Any = self.llm.llm_engine
        coming = self._encoded(requests)
        waiting: dict[str, tuple[Request, list[int]]] = {}
        added = 0
        while True:
            for request, ids in islice(coming, WAITING - len(waiting)):
                name = str(added)
                waiting[name] = request, ids
                engine.add_request(name, {"prompt_token_ids": ids}, self._params(request, ids))
                added += 1
            if not waiting:
                return
            for output in engine.step():
                if output.finished:
                    request, ids = waiting.pop(output.request_id)
                    yield make_sample(
                        request,
                        self.settings,
                        self.tokenizer,
                        len(ids),
                        output.outputs[0].token_ids,
                        self.ends,
                    )

    def _encoded(self, requests: Iterable[Request]) -> Iterator[tuple[Request, list[int]]]:
        stream = iter(requests)
        while batch := list(islice(stream, PROMPTS_AT_ONCE)):
            yield from zip(
                batch, prompt_ids(self.tokenizer, [r.prompt for r in batch]), strict=True
            )

    def _params(self, request: Request, ids: list[int]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        room = self.longest - len(ids)
        if room < 1:
            raise EngineError(
                f"a prompt of {len(ids)} tokens leaves no room in the {self.longest} of "
                f"{self.settings.model}: raise engine.runtime.max_model_len"
            )
        return SamplingParams(
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            max_tokens=min(self.sampling.max_tokens, room),
            seed=request.seed,
            stop_token_ids=list(self.ends),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _load(settings: EngineSettings, config: Any) -> Any:
    """Start vLLM; its environment variables must be set before it is imported."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CPU_CACHE_GB))
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the child process is ours
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from vllm import LLM
    except ImportError as error:
        raise EngineError(
            f"engine kind=vllm needs the package vllm ({error}): install it or use "
            "kind=transformers"
        ) from error
    runtime = settings.runtime
    overrides = yarn_parameters(config, settings.yarn_factor) if settings.yarn_factor else {}
    return LLM(
        model=settings.model,
        revision=settings.revision,
        tensor_parallel_size=runtime.tensor_parallel,
        gpu_memory_utilization=runtime.gpu_memory_utilization,
        dtype=runtime.dtype,
        max_model_len=runtime.max_model_len,
        hf_overrides=overrides,
        generation_config="vllm",  # our protocol, not the defaults that a model brings along
        disable_log_stats=True,
        **_for_this_machine(),
    )


def _for_this_machine() -> dict[str, Any]:
    """On CPU a prompt cut in two breaks the seeds of its request: prompts are taken whole."""
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}
