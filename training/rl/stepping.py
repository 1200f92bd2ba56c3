"""vLLM decoding step by step, so that a rollout can end in the middle of answers."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from .trainer import GPPOTrainer


class Engine(Protocol):
    """Decodes requests token by token, and can be left at any time."""

    def add(self, key: str, ids: list[int], most: int, seed: int) -> None:
        """A request for at most so many tokens after `ids`."""
        ...

    def step(self) -> Iterable[tuple[str, Sequence[int], list[float], bool]]:
        """New tokens by request, with their log-probabilities, and whether it has ended."""
        ...

    def abort(self, keys: list[str]) -> None: ...


class SteppedVLLM:
    """vLLM as an `Engine`."""

    def __init__(self, llm: Any, trainer: GPPOTrainer) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.engine = llm.llm_engine
        self.sampling = SamplingParams(
            temperature=trainer.args.temperature,
            logprobs=0,
            stop_token_ids=[*trainer.eos_token_ids],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def add(self, key: str, ids: list[int], most: int, seed: int) -> None:
        sampling = self.sampling.clone()
        sampling.max_tokens, sampling.seed = most, seed
        self.engine.add_request(key, {"prompt_token_ids": ids}, sampling)

    def step(self) -> Iterator[tuple[str, Sequence[int], list[float], bool]]:
        for output in self.engine.step():
            (new,) = output.outputs
            drawn = zip(new.token_ids, new.logprobs, strict=True)
            logps = [values[token].logprob for token, values in drawn]
            yield output.request_id, new.token_ids, logps, output.finished

    def abort(self, keys: list[str]) -> None:
        self.engine.abort_request(keys)


@contextmanager
def colocated(trainer: GPPOTrainer) -> Iterator[Engine]:
    """The engine that TRL made on CUDA; it sleeps during updates."""
    generation = trainer.vllm_generation
    trainer.load_policy()
    if generation.enable_sleep_mode:
        generation.llm.wake_up(tags=["kv_cache"])
    yield SteppedVLLM(generation.llm, trainer)
    if generation.enable_sleep_mode:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True
