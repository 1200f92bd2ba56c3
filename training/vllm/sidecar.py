"""A vLLM server of the stage's own, and beside it the processes that train and sample from it.

    python -m training.vllm.sidecar JOB.json --trainers 4 [--host H] [--by 'srun …'] -- COMMAND …

Starts the server of the job's policy, waits until it answers, runs COMMAND and ends the server.
Exits as COMMAND does; EXIT_WORKER_LOST when the server died, so another start may go further; 2
when there are too few GPUs for both; 1 when the server did not start. The server's output is
`logs/vllm.log`. Before the first answer the trainer hands over the policy as it is.
"""

import argparse
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import requests

from training.launch.jobs import RLJob, read_job
from training.launch.node import EXIT_WORKER_LOST, free_port
from training.layout import VLLM_LOG, ProgressFile
from training.vllm.server import EXTENSION, REQUIRE, TOKEN, URL, header, without_proxy

VISIBLE = "CUDA_VISIBLE_DEVICES"
POLL_S, ASK_S, END_S = 0.2, 5.0, 20.0
LAST_WORDS_S = 10.0  # a trainer may fail before the server that it lost has ended
TAIL_LINES, TAIL_BYTES = 15, 65_536


class NotStarted(RuntimeError):
    """The server ended, or was not ready in time."""


class TooFewGPUs(ValueError):
    """Trainers and server do not fit onto this machine."""


def main(arguments: list[str]) -> int:
    """Serve, run the command, end the server."""
    parser = argparse.ArgumentParser(prog="python -m training.vllm.sidecar", allow_abbrev=False)
    parser.add_argument("job")
    parser.add_argument("--trainers", type=int, default=1, help="processes that train here")
    parser.add_argument("--minutes", type=float, default=20.0, help="until the server answers")
    parser.add_argument("--host", default="127.0.0.1", help="address that the server listens on")
    parser.add_argument("--by", default="", help="words before the server's command: elsewhere")
    parser.add_argument("--slurm", action="store_true", help="on the first node of this step only")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(arguments)
    if asked.slurm and os.environ.get("SLURM_NODEID", "0") != "0":
        os.execvp(asked.command[0], asked.command)  # the server is beside rank 0
    job = read_job(Path(asked.job))
    assert isinstance(job, RLJob)
    try:
        ours, servers = shared_gpus(job, asked.trainers) if not asked.by else ({}, {})
        server = Server(job, asked.host, shlex.split(asked.by), servers)
        try:
            server.wait(asked.minutes)
            return beside(server, asked.command, ours)
        finally:
            end(server.process, group=True)  # its engines outlive a server that is killed
    except (NotStarted, TooFewGPUs) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, TooFewGPUs) else 1


def shared_gpus(job: RLJob, trainers: int) -> tuple[dict[str, str], dict[str, str]]:
    """What tells the trainers, and the server, their GPUs of this machine; nothing without GPUs.

    Raises TooFewGPUs.
    """
    of_the_driver = Path("/proc/driver/nvidia/gpus").glob("*")
    visible = os.environ.get(VISIBLE, ",".join(str(n) for n, _ in enumerate(of_the_driver)))
    devices = [d.strip() for d in visible.split(",") if d.strip() not in ("", "-1")]
    if not devices:
        return {}, {}
    runtime = job.settings.engine_runtime
    needs = runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel
    if len(devices) < trainers + needs:
        raise TooFewGPUs(
            f"{trainers} GPUs train and the stage's vLLM needs {needs} more (engine_runtime."
            f"tensor_parallel × pipeline_parallel × data_parallel), but there are {len(devices)}: "
            "set topology.rl_gpus to fewer, make the server smaller, or take engine=vllm_colocate"
        )
    parts = devices[:trainers], devices[trainers : trainers + needs]
    ours, servers = ({VISIBLE: ",".join(part)} for part in parts)
    return ours, servers


def serve_command(job: RLJob, name: str, host: str, port: int, *, cuda: bool) -> list[str]:
    """The server of `job`'s first policy, known as `name`, that takes its trainer's weights."""
    s, runtime = job.settings, job.settings.engine_runtime
    longest = runtime.max_model_len or s.max_prompt_tokens + s.max_tokens
    config = job.checkpoint / "config.json"  # the model may be on the hub
    if config.is_file():
        known = json.loads(config.read_text())
        longest = min(longest, known.get("max_position_embeddings", longest))
    own_type = "bfloat16" if s.runtime.bf16 else "float32"
    options = {
        "model": job.checkpoint,
        "served-model-name": name,
        "host": host,
        "port": port,
        "dtype": own_type if runtime.dtype == "auto" else runtime.dtype,
        "max-model-len": longest,
        "seed": job.seed,
        "logprobs-mode": "processed_logprobs",
        "middleware": REQUIRE,
        "tensor-parallel-size": runtime.tensor_parallel,
        "pipeline-parallel-size": runtime.pipeline_parallel,
        "data-parallel-size": runtime.data_parallel,
        "gpu-memory-utilization": runtime.gpu_memory_utilization,
    }
    nccl = ["--weight-transfer-config", '{"backend": "nccl"}']
    return [
        *(sys.executable, "-P", "-m", "training.vllm.server"),
        *(word for option, value in options.items() for word in (f"--{option}", str(value))),
        *(nccl if cuda else ["--worker-extension-cls", EXTENSION, "--enforce-eager"]),
    ]


class Server:
    """A vLLM server that was started, the first of its process group, with a token of its own."""

    def __init__(self, job: RLJob, host: str, by: list[str], gpus: Mapping[str, str]) -> None:
        port = free_port("" if by else host)
        self.url, self.token = f"http://{host}:{port}", secrets.token_urlsafe(32)
        self._name, self._progress = f"policy-{secrets.token_hex(4)}", ProgressFile(job.out)
        self.log = job.out / VLLM_LOG
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",  # its endpoints are those that take weights
            "VLLM_NO_USAGE_STATS": "1",
            TOKEN: self.token,
            **gpus,
        }
        with self.log.open("ab") as file:
            self._began = file.tell()
            self.process = subprocess.Popen(
                [*by, *serve_command(job, self._name, host, port, cuda=bool(gpus or by))],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )

    def wait(self, minutes: float) -> None:
        """Until the server, and no other that took its port, answers. Raises NotStarted."""
        deadline = time.monotonic() + minutes * 60
        while not self._is_up():
            self._progress.report(0, 1, "starting vLLM")
            if (code := self.process.poll()) is not None:
                raise NotStarted(self.end_of_log(f"ended with exit code {code} before it answered"))
            if time.monotonic() > deadline:
                why = f"did not answer in {minutes:g} minutes (runtime.launch.server.minutes)"
                raise NotStarted(self.end_of_log(why))
            time.sleep(POLL_S)

    def _is_up(self) -> bool:
        with requests.Session() as session:
            session.trust_env = False  # no proxy, no ~/.netrc
            try:
                question = f"{self.url}/v1/models"
                reply = session.get(question, headers=header(self.token), timeout=ASK_S)
                return self._name in [model["id"] for model in reply.json()["data"]]
            except (requests.RequestException, KeyError, TypeError):
                return False

    def end_of_log(self, what: str) -> str:
        """That `what` happened, and the last lines that this start wrote."""
        with self.log.open("rb") as file:
            file.seek(max(self._began, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").rstrip().splitlines()[-TAIL_LINES:]
        shown = "\n".join(lines)
        return f"the stage's vLLM server {what}; the log is {self.log}, its last lines:\n{shown}"


def beside(server: Server, command: Sequence[str], gpus: Mapping[str, str]) -> int:
    """The exit code of `command`, or EXIT_WORKER_LOST if the server ended before it or with it."""
    told = {URL: server.url, TOKEN: server.token, **without_proxy(server.url)}
    process = subprocess.Popen(command, env={**os.environ, **told, **gpus})
    try:
        while process.poll() is None and server.process.poll() is None:
            time.sleep(POLL_S)
        if process.poll():  # because of the server?
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(LAST_WORDS_S)
        if process.returncode == 0 or server.process.poll() is None:
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
    finally:
        end(process)
    code = server.process.returncode
    print(server.end_of_log(f"ended with exit code {code} in the middle"), file=sys.stderr)
    return EXIT_WORKER_LOST


def end(process: "subprocess.Popen[bytes]", *, group: bool = False) -> None:
    """TERM, and after some patience KILL, to a process, or to the whole group that it led.

    A group may outlive its first process: vLLM's engine does, and keeps its GPU.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign) if group else process.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # by way of `finally`
    sys.exit(main(sys.argv[1:]))
