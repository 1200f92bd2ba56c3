"""Sampling with vLLM: its asynchronous engine, over all the GPUs it is given. Every request has its
own seed: up to rounding a sample depends on none that it is batched with."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from ...configs.settings.engines import EngineSettings, Sampling
from ...eval.records import Sample
from .interface import EngineError, Request, ask_concurrently, require_vllm
from .local_model import LocalModel, yarn_parameters

AT_ONCE = 1024  # requests in each copy of the model: enough that it never waits for us


class VLLMEngine(LocalModel):
    """A model in vLLM's engine processes: tensor, pipeline and data parallel."""

    def __init__(self, settings: EngineSettings, sampling: Sampling) -> None:
        require_vllm()
        super().__init__(settings, sampling)
        self._names = count()
        self._runner = asyncio.Runner()
        self.engine = self._runner.run(_start(engine_arguments(settings, self.config)))
        if settings.runtime.max_model_len is None:
            self.positions = self.engine.model_config.max_model_len

    def __exit__(self, *_: object) -> None:
        self.engine.shutdown()
        self._runner.close()

    def answer_all(self, requests: Iterable[Request]) -> Iterator[Sample]:
        at_once = AT_ONCE * self.settings.runtime.data_parallel
        return ask_concurrently(self._runner, self._ask, requests, lambda _: at_once)

    async def _ask(self, request: Request) -> Sample:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        (ids,) = self.chat.prompt_ids([request.prompt])
        room, limit = self.room(len(ids)), self.settings.runtime.max_model_len
        if limit and len(ids) + room > limit:  # memory must not change a sample
            need = f"a prompt of {len(ids)} tokens and its answer need {len(ids) + room}"
            cuts = f"engine.runtime.max_model_len={limit} would cut answers"
            raise EngineError(f"{cuts}: {need}: raise it to that, or leave it out")
        if not room:
            return self.sample(request, len(ids), None)
        parameters = SamplingParams(
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
        prompt, name = {"prompt_token_ids": ids}, str(next(self._names))
        (final,) = [output async for output in self.engine.generate(prompt, parameters, name)]
        return self.sample(request, len(ids), final.outputs[0].token_ids)


async def _start(arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    if current_platform.is_cpu():  # there a prompt cut in two breaks the seeds of its request
        arguments = {**arguments, "enable_chunked_prefill": False}
    usage = UsageContext.LLM_CLASS  # batches as large as offline
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), usage_context=usage)


def engine_arguments(settings: EngineSettings, config: Any) -> dict[str, Any]:
    runtime, factor = settings.runtime, settings.yarn_factor
    return {
        "model": settings.model,
        "revision": settings.revision,
        "load_format": "safetensors",
        "tensor_parallel_size": runtime.tensor_parallel,
        "data_parallel_size": runtime.data_parallel,
        "gpu_memory_utilization": runtime.gpu_memory_utilization,
        "dtype": runtime.dtype,
        "max_model_len": runtime.max_model_len,
        "hf_overrides": yarn_parameters(config, factor) if factor else {},
        "generation_config": "vllm",  # our protocol, not the defaults that a model brings along
        "disable_log_stats": True,
    }
