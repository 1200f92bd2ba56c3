"""Sampling with vLLM in this process: requests are handed in as there is room, in any order.

Every request has its own seed, so a sample does not depend on what it is batched with, up to the
rounding of the kernels.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Self

from configs.engines import EngineSettings, Sampling
from eval.records import Sample
from training.engines.answers import (
    load_tokenizer_and_config,
    make_sample,
    think_prefill,
    too_long,
    yarn_parameters,
)
from training.engines.interface import EngineError, Request
from training.render import prompt_ids
from training.room import Room, positions_of

CPU_CACHE_GB = 1
PROMPTS_AT_ONCE = 256
WAITING = 1024
"""Requests in the engine: enough that it never waits for us."""


class VLLMEngine:
    """vLLM's offline engine, tensor and pipeline parallel over the GPUs it is given."""

    whole_batches = False

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        self.settings, self.sampling = settings, sampling
        self.tokenizer, config, self.ends = load_tokenizer_and_config(settings)
        self.prefill = think_prefill(settings, self.tokenizer)
        self.llm = _load(settings, config)
        self.longest: int = self.llm.model_config.max_model_len
        self.room = Room(settings.model, self.longest)
        self.positions = positions_of(config, settings.yarn_factor)

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
                room = self._room(len(ids))
                if not room:
                    yield too_long(request, self.settings, len(ids))
                    continue
                name = str(added)
                waiting[name] = request, ids
                engine.add_request(name, {"prompt_token_ids": ids}, self._params(request, room))
                added += 1
            if not waiting:
                if (left := next(coming, None)) is None:
                    return
                coming = chain([left], coming)
                continue
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
                        self.prefill,
                    )

    def _encoded(self, requests: Iterable[Request]) -> Iterator[tuple[Request, list[int]]]:
        stream = iter(requests)
        while batch := list(islice(stream, PROMPTS_AT_ONCE)):
            yield from zip(
                batch, prompt_ids(self.tokenizer, [r.prompt for r in batch]), strict=True
            )

    def _room(self, prompt: int) -> int:
        """Tokens that the answer to a prompt of so many tokens may have; 0: the prompt is too long.

        Fewer than asked for where the model itself has no more positions.
        """
        limit = self.settings.runtime.max_model_len
        if limit is not None:
            refuse_to_cut(prompt, self.sampling.max_tokens, limit, self.positions)
        return self.room.after(prompt, self.sampling.max_tokens)

    def _params(self, request: Request, room: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k or 0,  # 0: off
            repetition_penalty=self.sampling.repetition_penalty or 1.0,
            max_tokens=room,
            seed=request.seed,
            stop_token_ids=list(self.ends),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def refuse_to_cut(prompt: int, max_tokens: int, limit: int, positions: int | None) -> None:
    """Raise EngineError where `max_model_len=limit` would end an answer before `max_tokens`.

    How much memory there is must not change a sample; where the model ends is its own affair.
    """
    needed = prompt + max_tokens if positions is None else min(prompt + max_tokens, positions)
    if limit < needed:
        raise EngineError(
            f"engine.runtime.max_model_len={limit} would cut answers: a prompt of {prompt} tokens "
            f"and max_tokens={max_tokens} need {needed}: raise it to that or more, or leave it out"
        )


def set_environment() -> None:
    """Variables that vLLM reads when an engine starts, where the user has not set them."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CPU_CACHE_GB))
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the child process is ours
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _load(settings: EngineSettings, config: Any) -> Any:
    set_environment()
    try:
        from vllm import LLM
    except ImportError as error:
        raise EngineError(
            f"engine kind=vllm needs the package vllm ({error}): install it or use "
            "kind=transformers"
        ) from error
    return LLM(**llm_arguments(settings, config), **_for_this_machine())


def llm_arguments(settings: EngineSettings, config: Any) -> dict[str, Any]:
    """What the settings say, in the words of vLLM."""
    runtime = settings.runtime
    return {
        "model": settings.model,
        "revision": settings.revision,
        "load_format": "safetensors",
        "tensor_parallel_size": runtime.tensor_parallel,
        "pipeline_parallel_size": runtime.pipeline_parallel,
        "gpu_memory_utilization": runtime.gpu_memory_utilization,
        "dtype": runtime.dtype,
        "max_model_len": runtime.max_model_len,
        "hf_overrides": yarn_parameters(config, settings.yarn_factor)
        if settings.yarn_factor
        else {},
        "generation_config": "vllm",  # our protocol, not the defaults that a model brings along
        "disable_log_stats": True,
    }


def _for_this_machine() -> dict[str, Any]:
    """On CPU a prompt cut in two breaks the seeds of its request: prompts are taken whole."""
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}
