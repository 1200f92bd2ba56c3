"""A real `vllm serve` on this machine's CPU: on loopback, to be killed and started again."""

import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psutil
from processes import below, commanded, free_ports, left

from klear.configs.settings.training import BaseModelSettings
from klear.eval.families import countdown
from klear.training.engines.interface import Request, request_seed

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
               "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}  # fmt: skip
START_S = 1_200.0
TINY = BaseModelSettings(
    kind="random", hidden=64, layers=1, heads=2, kv_heads=1, head_dim=32, mlp=64, vocabulary=280,
    max_positions=256,
)  # fmt: skip
SERVE = "from vllm.entrypoints.launchers.api_server.entry import main; main()"
"""Not `vllm serve`, which asks for the version of a package that the build for CPUs lacks."""


def tiny_teacher(folder: Path, sizes: BaseModelSettings = TINY) -> Path:
    """A checkpoint of random weights; vLLM on CPU has a kernel for the heads of TINY."""
    from klear.training.base import small_model, small_tokenizer
    from klear.training.models import save_model

    tokenizer = small_tokenizer(["user\nMake 1 from 2, 3, 4.\nassistant\n<think>"], 280)
    save_model(small_model(sizes, tokenizer, 0), tokenizer, folder / "checkpoint")
    return folder / "checkpoint"


def countdown_requests(count: int) -> list[Request]:
    """Of so many problems, each to be answered once."""
    return [
        Request(problem_id=p.id, index=0, prompt=p.prompt, seed=request_seed(0, p.id, 0))
        for p in countdown.generate(random.Random(0), count, "train")
    ]


class VLLMServer:
    """One server at one address. As a context manager it starts, and ends with the block."""

    def __init__(
        self,
        checkpoint: Path,
        log: Path,
        words: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        (port,) = free_ports(1)
        self.log, self.address = log, f"http://127.0.0.1:{port}"
        self.url = f"{self.address}/v1"
        self._command = [
            sys.executable, "-c", SERVE, "--model", str(checkpoint),
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager",
            "--served-model-name", "tiny-teacher", "--generation-config", "vllm",
            "--no-enable-chunked-prefill", *words,
        ]  # fmt: skip
        here = {"PYTHONPATH": str(ROOT / ".package"), **ENVIRONMENT, **environment}
        self._environment = {**os.environ, **here}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        tree = self.tree()
        if self._process is not None:
            self._process.terminate()
        self._kill(left(tree, 30.0))

    def start(self) -> None:
        """Begin to start it; `wait` until it answers."""
        with self.log.open("a") as out:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Until it answers; AssertionError with the end of its log when it ended instead."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
                return
            time.sleep(0.5)
        raise AssertionError(f"vllm serve did not start:\n{self.log.read_text()[-3000:]}")

    def tree(self) -> list[psutil.Process]:
        """The server, which takes requests, and below it the engine, which computes."""
        if self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [psutil.Process(self._process.pid), *below(self._process.pid)]
        return []

    def kill(self, victim: str) -> list[psutil.Process]:
        """SIGKILL of the `server`, of its `engine`, or of `all`; what there was before."""
        tree = self.tree()
        engines = commanded("EngineCore", tree)
        self._kill({"server": tree[:1], "engine": engines, "all": tree}[victim])
        return tree

    def mark_crashed(self, tree: Sequence[psutil.Process]) -> None:
        """Wait for a killed server to be gone, then end the rest, as a service manager would: an
        engine outlives its server, and keeps its memory."""
        left(tree[:1])
        self._kill(tree)
        still = left(tree)
        assert not still, f"cannot be ended: {still}"

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.poll()
