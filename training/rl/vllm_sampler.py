"""TRL's vLLM sampler as an RL stage needs it: sure that a server is still the one that was given
the policy, and able to sample without CUDA.

TRL's client asks again for about a minute when its server does not answer. A server that is started
again meanwhile answers with the weights that it was started with, as if nothing had happened. Here
that ends the stage, which goes on from its last checkpoint and hands over the policy anew.

TRL sends weights to a server over NCCL and writes them into a colocated engine as they are, which
vLLM on CPU cannot take: its layers hold packed copies. Without CUDA they go through
`training.rl.vllm_weights.PolicyWeights`: within this process, or to a server by way of a folder.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from requests import RequestException
from safetensors.torch import save_file
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import ensure_master_addr_port

from training.engines.vllm_engine import set_environment
from training.rl.vllm_weights import EXTENSION

HANDED_OVER = ".weights-for-vllm"
ONE_PASS = 4_096  # tokens of a forward pass, as TRL's colocated engine
OF_VLLM = ("mode", "structured_outputs_regex", "server_base_url", "server_host", "server_port",
           "group_port", "server_timeout", "tensor_parallel_size", "gpu_memory_utilization",
           "max_model_length", "enable_sleep_mode", "model_impl")  # fmt: skip
"""What GRPOConfig calls `vllm_…` and the sampler without it."""
OF_SAMPLING = ("trust_remote_code", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
               "max_completion_length", "generation_kwargs")  # fmt: skip


class ServerLost(RuntimeError):
    """The server is gone, or has been started again; training can go on from its checkpoint."""


class PolicyClient(VLLMClient):
    """`VLLMClient` that knows the start of its server from all other starts."""

    _start = ""

    @contextmanager
    def same_server(self) -> Iterator[None]:
        """Hand over the policy and sample inside of the block.

        Raises ServerLost when the server gives no answer, or when it is not the one of the first
        call, before or after the block.
        """
        try:
            self._check_start()
            yield
            self._check_start()
        except RequestException as error:
            raise ServerLost(
                f"the vLLM server at {self.base_url} does not answer any more ({error}); start "
                "it again and run again: training goes on from its last checkpoint"
            ) from error

    def _check_start(self) -> None:
        found = self.get_server_info()["instance_id"]  # drawn anew at every start
        if self._start and found != self._start:
            raise ServerLost(
                f"the vLLM server at {self.base_url} was started again and has lost the policy; "
                "run again: training goes on from its last checkpoint"
            )
        self._start = found


class PolicySampler(VLLMGeneration):
    """`VLLMGeneration` for a trainer, with the client above and with a way for CPUs."""

    def __init__(self, trainer: Any) -> None:
        args = trainer.args
        self._cuda = args.device.type != "cpu"
        self._folder = Path(args.output_dir or ".") / HANDED_OVER
        super().__init__(
            model=trainer.model,
            accelerator=trainer.accelerator,
            processing_class=trainer.processing_class,
            max_num_seqs=args.per_device_train_batch_size
            * args.vllm_tensor_parallel_size
            * args.steps_per_generation,
            **{name: getattr(args, f"vllm_{name}") for name in OF_VLLM},
            **{name: getattr(args, name) for name in OF_SAMPLING},
        )

    def _init_vllm(self) -> None:
        if self.mode == "colocate" and self._cuda:
            super()._init_vllm()
            return
        if self.mode == "colocate":
            self.llm = self._colocated_on_cpu()
        elif self.accelerator.is_main_process:
            self.vllm_client = self._client()
        self.accelerator.wait_for_everyone()

    def _client(self) -> PolicyClient:
        """Raises ValueError, with the command that starts another, where a server cannot take the
        weights of a trainer without CUDA."""
        url = self.server_base_url or f"http://{self.server_host}:{self.server_port}"
        client = PolicyClient(
            base_url=url, group_port=self.group_port, connection_timeout=self.server_timeout
        )
        if self._cuda:
            client.init_communicator(device=self.accelerator.device)
            return client
        shutil.rmtree(self._folder, ignore_errors=True)  # of a trainer that was killed
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

    def _colocated_on_cpu(self) -> Any:
        if self.tensor_parallel_size > 1:
            raise ValueError(
                f"vllm_tensor_parallel_size={self.tensor_parallel_size}: without CUDA vLLM takes "
                "the weights of the trainer in one process only; set it to 1"
            )
        set_environment()
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "RANK": str(self.accelerator.process_index),
            "LOCAL_RANK": str(self.accelerator.local_process_index),
            "WORLD_SIZE": str(self.accelerator.num_processes),
        }
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

    def sync_weights(self) -> None:
        """Make vLLM sample from the policy as it is now; all processes call it."""
        if self._cuda:
            super().sync_weights()
        elif self.mode == "colocate":
            arguments: dict[str, Any] = {"weights_iterator": self._iter_named_params()}
            self.llm.collective_rpc("take_policy", kwargs=arguments)
            self.llm.reset_prefix_cache()
        elif self.accelerator.is_main_process:
            self._send_by_folder()
        else:
            for _ in self._iter_named_params():  # gathering is everyone's work
                pass

    def _send_by_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            weights = {n: p.detach().contiguous() for n, p in self._iter_named_params()}
            save_file(weights, Path(place) / "model.safetensors", {"format": "pt"})
            where = {"weights_path": str(Path(place).resolve())}
            request = {"method": "take_policy", "kwargs": where}
            client = self.vllm_client
            client._post(f"{client.base_url}/collective_rpc", json=request)
        client.reset_prefix_cache()
