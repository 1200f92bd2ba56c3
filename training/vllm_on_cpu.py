"""vLLM as the sampler of RL on a machine without CUDA, in this process or on a server.

TRL sends weights to a server over NCCL (`VLLMClient.init_communicator` needs a CUDA device) and
writes them into a colocated engine as they are (`VLLMGeneration.sync_weights`), which vLLM on CPU
cannot take: its layers hold packed copies. Here the weights go through `training.vllm_worker`:
handed over in this process, or to a server by way of a folder that both can read. With CUDA,
GPPOTrainer leaves all of it to TRL.
"""

import copy
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import ensure_master_addr_port

from training.engines.vllm_engine import set_environment
from training.gppo_config import GPPOConfig
from training.server_client import PolicyClient
from training.vllm_worker import EXTENSION

HANDED_OVER = ".weights-for-vllm"
ONE_PASS = 4_096  # tokens of a forward pass, as TRL's colocated engine


def is_needed(args: GPPOConfig) -> bool:
    """Whether vLLM is asked for where TRL cannot bring it the weights."""
    return args.use_vllm and args.device.type == "cpu"


def without_vllm(args: GPPOConfig) -> GPPOConfig:
    """What the parent of the trainer is told, so that it starts no engine itself."""
    args = copy.copy(args)
    args.use_vllm = False
    return args


def give_sampler(trainer: Any, args: GPPOConfig) -> None:
    """Let `trainer` sample with vLLM as `args` ask for, as TRL's own constructor would."""
    if args.vllm_mode == "colocate" and args.vllm_tensor_parallel_size > 1:
        raise ValueError(
            f"vllm_tensor_parallel_size={args.vllm_tensor_parallel_size}: without CUDA vLLM takes "
            "the weights of the trainer in one process only; set it to 1"
        )
    sequences = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    trainer.vllm_generation = GenerationOnCPU(
        folder=Path(args.output_dir or "."),
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        mode=args.vllm_mode,
        server_base_url=args.vllm_server_base_url,
        server_host=args.vllm_server_host,
        server_port=args.vllm_server_port,
        server_timeout=args.vllm_server_timeout,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        max_model_length=args.vllm_max_model_length,
        max_num_seqs=sequences,
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k,
        min_p=trainer.min_p,
        repetition_penalty=trainer.repetition_penalty,
        max_completion_length=trainer.max_completion_length,
        generation_kwargs=args.generation_kwargs,
    )
    trainer.use_vllm = trainer.args.use_vllm = True
    trainer._last_loaded_step = -1  # TRL's mark: the weights of no step have been handed over


class GenerationOnCPU(VLLMGeneration):
    """TRL's sampler with another way for the weights."""

    def __init__(self, *, folder: Path, **kwargs: Any) -> None:
        self.folder = folder
        """Of this trainer: weights lie in `HANDED_OVER` below it on their way to a server."""
        super().__init__(**kwargs)

    def _init_vllm(self) -> None:
        if self.mode == "colocate":
            self.llm = self._colocated()
        elif self.accelerator.is_main_process:
            self.vllm_client = self._server()
        self.accelerator.wait_for_everyone()

    def _colocated(self) -> Any:
        set_environment()
        os.environ["RANK"] = str(self.accelerator.process_index)
        os.environ["LOCAL_RANK"] = str(self.accelerator.local_process_index)
        os.environ["WORLD_SIZE"] = str(self.accelerator.num_processes)
        ensure_master_addr_port()
        try:
            from vllm import LLM
        except ImportError as error:
            raise ImportError(
                f"vllm_mode=colocate needs the package vllm ({error}): install it, or sample with "
                "transformers"
            ) from error
        return LLM(
            model=str(self.model.name_or_path),
            dtype=str(self.model.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            max_model_len=self.max_model_length,
            max_num_seqs=self.max_num_seqs or 1,
            max_num_batched_tokens=max(ONE_PASS, self.max_model_length or 0),
            gpu_memory_utilization=self.gpu_memory_utilization,
            logprobs_mode="processed_logprobs",
            distributed_executor_backend="external_launcher",
            worker_extension_cls=EXTENSION,
            enforce_eager=True,
            enable_chunked_prefill=False,
            disable_log_stats=True,
            seed=self.accelerator.process_index,
        )

    def _server(self) -> PolicyClient:
        """The client of a server that can take weights from a folder.

        Raises ValueError, with the command that starts one, for any other.
        """
        shutil.rmtree(self.folder / HANDED_OVER, ignore_errors=True)  # of a trainer that was killed
        url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
        client = PolicyClient(base_url=url, connection_timeout=self.server_timeout)
        command = (
            "start it with: VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --worker-extension-cls "
            f"{EXTENSION} --logprobs-mode processed_logprobs"
        )
        try:
            info = client.get_server_info()
        except RuntimeError as error:  # its development endpoints are off
            raise ValueError(f"the vLLM server at {url} takes no weights; {command}") from error
        if info["parallel_config"].get("worker_extension_cls") != EXTENSION:
            raise ValueError(
                f"the vLLM server at {url} can take no weights from a trainer without CUDA; "
                f"{command}"
            )
        return client

    def sync_weights(self) -> None:
        """Make vLLM sample from the policy as it is now; all processes call it."""
        if self.mode == "colocate":
            arguments: dict[str, Any] = {"weights_iterator": self._iter_named_params()}
            self.llm.collective_rpc("take_policy", kwargs=arguments)
            self.llm.reset_prefix_cache()
            return
        if not self.accelerator.is_main_process:
            for _ in self._iter_named_params():  # gathering is everyone's work
                pass
            return
        client = self.vllm_client
        way = self.folder / HANDED_OVER
        way.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=way) as place:
            weights = {n: p.detach().contiguous() for n, p in self._iter_named_params()}
            save_file(weights, Path(place) / "model.safetensors", {"format": "pt"})
            request = {
                "method": "take_policy",
                "kwargs": {"weights_path": str(Path(place).resolve())},
            }
            client._post(f"{client.base_url}/collective_rpc", json=request)
        client.reset_prefix_cache()
