"""vLLM as the sampler of an RL stage without CUDA, in the training process: TRL writes the policy's
weights into vLLM's layers as they are, which on CPU hold packed copies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel
from trl.generation.vllm_generation import extract_logprobs
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.utils import ensure_master_addr_port

from ..engines.interface import require_vllm
from ..launch.ranks import rank, world_size
from ..models import policy_on_each
from .partial import SteppedVLLM

ONE_PASS = 4_096  # tokens of a forward pass, as TRL's colocated engine


def pack_tied_head(model: Any) -> None:
    """`reload_weights` packs the layers that it loads, of which a tied head is none."""
    head, embedding = model.lm_head, model.model.embed_tokens
    if head is not embedding and head.weight is embedding.weight:
        head.quant_method.process_weights_after_loading(head)


class VLLMOnCPU:
    """TRL's hook for sampling: every rollout comes from the policy as it is then."""

    def __init__(self, model: PreTrainedModel, args: GRPOConfig) -> None:
        require_vllm()
        places = {"RANK": rank(), "LOCAL_RANK": rank(), "WORLD_SIZE": world_size()}
        for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": 0, **places}.items():
            os.environ.setdefault(name, str(value))
        ensure_master_addr_port()
        from vllm import LLM, SamplingParams

        longest = args.vllm_max_model_length or 0
        self.llm = LLM(
            model=str(model.name_or_path),
            dtype=str(model.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            max_model_len=longest,
            max_num_seqs=args.per_device_train_batch_size * (args.steps_per_generation or 1),
            max_num_batched_tokens=max(ONE_PASS, longest),
            logprobs_mode="processed_logprobs",
            distributed_executor_backend="external_launcher",
            enforce_eager=True,
            enable_chunked_prefill=False,
            disable_log_stats=True,
            seed=rank(),
        )
        self.sampling = SamplingParams(
            temperature=args.temperature, max_tokens=args.max_completion_length, logprobs=0
        )

    def _load(self, trainer: Any) -> None:
        weights = policy_on_each(trainer).named_parameters()
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self.llm.apply_model(pack_tied_head)
        self.llm.reset_prefix_cache()

    @contextmanager
    def awake(self, trainer: Any) -> Iterator[SteppedVLLM]:
        """For partial rollouts."""
        self._load(trainer)
        yield SteppedVLLM(self.llm, trainer)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self._load(trainer)
        ids = trainer.chat.prompt_ids([turns[-1]["content"] for turns in prompts])
        self.sampling.stop_token_ids = list(trainer.eos_token_ids)
        requests: list[Any] = [{"prompt_token_ids": prompt} for prompt in ids]
        answers = self.llm.generate(requests, self.sampling, use_tqdm=False)
        texts = [answer.outputs[0].token_ids for answer in answers]
        logp, _ = extract_logprobs(answers)
        drawn = [[best[0] for best in tokens] for tokens in logp or ()]
        return {"prompt_ids": ids, "completion_ids": texts, "logprobs": drawn}
