"""vLLM as the sampler of RL: what TRL makes, and what takes its place without CUDA.

TRL sends weights to a server over NCCL (`VLLMClient.init_communicator` needs a CUDA device) and
writes them into a colocated engine as they are (`VLLMGeneration.sync_weights`), which vLLM on CPU
cannot take: its layers hold packed copies. Here the weights go through `training.vllm.worker`:
handed over in this process, or to a server by way of a folder that both can read.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from safetensors.torch import save_file
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer
from trl.trainer.utils import ensure_master_addr_port

from training.engines.vllm_engine import set_environment
from training.rl.config import GPPOConfig
from training.vllm.client import PolicyClient
from training.vllm.worker import EXTENSION

HANDED_OVER = ".weights-for-vllm"
ONE_PASS = 4_096  # tokens of a forward pass, as TRL's colocated engine


@contextmanager
def in_trl(args: GPPOConfig) -> Iterator[None]:
    """Inside of the block TRL's trainers, which make their sampler and its client themselves, take
    the client that has the token, and without CUDA the sampler below."""
    ours = partial(GenerationOnCPU, folder=Path(args.output_dir or "."))
    sampler = ours if args.device.type == "cpu" else VLLMGeneration
    with (
        mock.patch.object(vllm_generation, "VLLMClient", PolicyClient),
        mock.patch.object(grpo_trainer, "VLLMGeneration", sampler),
    ):
        yield


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
        if self.tensor_parallel_size > 1:
            raise ValueError(
                f"vllm_tensor_parallel_size={self.tensor_parallel_size}: without CUDA vLLM takes "
                "the weights of the trainer in one process only; set it to 1"
            )
        set_environment()
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["RANK"] = str(self.accelerator.process_index)
        os.environ["LOCAL_RANK"] = str(self.accelerator.local_process_index)
        os.environ["WORLD_SIZE"] = str(self.accelerator.num_processes)
        ensure_master_addr_port()
        from vllm import LLM

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
        try:
            found = client.get_server_info()["parallel_config"].get("worker_extension_cls")
        except RuntimeError:  # its development endpoints are off
            found = None
        if found != EXTENSION:
            raise ValueError(
                f"the vLLM server at {url} can take no weights from a trainer without CUDA; start "
                "it with: VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --worker-extension-cls "
                f"{EXTENSION} --logprobs-mode processed_logprobs"
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
        client, way = self.vllm_client, self.folder / HANDED_OVER
        way.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=way) as place:
            weights = {n: p.detach().contiguous() for n, p in self._iter_named_params()}
            save_file(weights, Path(place) / "model.safetensors", {"format": "pt"})
            where = {"weights_path": str(Path(place).resolve())}
            request = {"method": "take_policy", "kwargs": where}
            client._post(f"{client.base_url}/collective_rpc", json=request)
        client.reset_prefix_cache()
