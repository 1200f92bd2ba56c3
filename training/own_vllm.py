"""The vLLM server that an RL stage starts for itself: its command line, and whether it answers.

It serves the policy that the stage begins with; before the first answer the trainer hands over the
policy as it is. `training.beside_vllm` starts, watches and ends it.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

from training.jobs import RLJob
from training.room import positions_of
from training.server_token import REQUIRE, TOKEN, header
from training.vllm_worker import EXTENSION

URL = "KLEAR_STAGE_VLLM"
"""Environment variable that tells the first training process where its server is."""
ASK_S = 5.0
CPU_CACHE_GB = "1"


def own_server(named: str = "") -> str:
    """`named`, the address in the settings, or that of the stage's own server.

    Raises ValueError where neither is known.
    """
    url = named or os.environ.get(URL, "")
    if not url:
        raise ValueError(
            "engine=vllm_server without runtime.vllm_server_url: a stage starts its own server "
            "(klear run, or python -m training.beside_vllm); name one to use another"
        )
    return url


def serve_command(job: RLJob, name: str, host: str, port: int, *, cuda: bool) -> list[str]:
    """`vllm serve` for the policy of `job`, known as `name`, that takes its trainer's weights."""
    s, runtime = job.settings, job.settings.engine_runtime
    longest = runtime.max_model_len or s.max_prompt_tokens + s.max_tokens
    positions = _positions(job.checkpoint)
    longest = min(longest, positions) if positions else longest
    dtype = "bfloat16" if s.runtime.bf16 else "float32"
    return [
        *(sys.executable, "-P", "-m", "training.vllm_serve", str(job.checkpoint)),
        *("--served-model-name", name, "--host", host, "--port", str(port)),
        *("--dtype", dtype if runtime.dtype == "auto" else runtime.dtype),
        *("--max-model-len", str(longest), "--seed", str(job.seed)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--middleware", REQUIRE),
        *("--api-server-count", "1"),  # each would be a server of its own to `same_server`
        *("--tensor-parallel-size", str(runtime.tensor_parallel)),
        *("--pipeline-parallel-size", str(runtime.pipeline_parallel)),
        *("--data-parallel-size", str(runtime.data_parallel)),
        *("--gpu-memory-utilization", str(runtime.gpu_memory_utilization)),
        *(_with_cuda() if cuda else _without_cuda()),
    ]


def _with_cuda() -> list[str]:
    return ["--weight-transfer-config", '{"backend": "nccl"}']


def _without_cuda() -> list[str]:
    return ["--worker-extension-cls", EXTENSION, "--enforce-eager"]


def serve_environment(token: str) -> dict[str, str]:
    """Of the server: its development endpoints are those that take weights. It answers whoever
    shows `token`."""
    return {
        TOKEN: token,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GB),
    }


def without_proxy(url: str) -> dict[str, str]:
    """Variables for a process that asks the server at `url`: no proxy stands between."""
    names = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    host = url.partition("://")[2].rpartition(":")[0]
    direct = ",".join(filter(None, (names, host)))
    return {"NO_PROXY": direct, "no_proxy": direct}


def is_up(url: str, name: str, token: str = "") -> bool:
    """Whether the server at `url` answers who has `token`, and is the one that serves `name`."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    question = urllib.request.Request(f"{url}/v1/models", headers=header(token))
    try:
        with direct.open(question, timeout=ASK_S) as reply:
            return name in [model["id"] for model in json.load(reply)["data"]]
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return False


def _positions(checkpoint: Path) -> int | None:
    """Those of a checkpoint folder's model; None for one that is not on this disk."""
    file = checkpoint / "config.json"
    return positions_of(SimpleNamespace(**json.loads(file.read_text()))) if file.is_file() else None
