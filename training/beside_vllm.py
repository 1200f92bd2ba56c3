"""A vLLM server of the stage's own, and beside it the processes that train and sample from it.

    python -m training.beside_vllm JOB.json --trainers 4 [--host H] [--by 'srun …'] -- COMMAND …

Starts the server of the job's policy, waits until it answers, runs COMMAND and ends the server.
Exits as COMMAND does; LOST when the server died, so another start may go further; 2 when there are
too few GPUs for both; 1 when the server did not start. The server's output is `out/logs/vllm.log`.
"""

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from training.jobs import RLJob, read_job
from training.node import LOST
from training.own_vllm import URL, is_up, serve_command, serve_environment, without_proxy
from training.ports import free_port
from training.progress_files import ProgressFile
from training.server_token import TOKEN, new_token

GPUS_OF_THE_DRIVER = Path("/proc/driver/nvidia/gpus")
VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOPBACK = "127.0.0.1"
POLL_S = 0.2
TRIES = 5  # ports that others took between the look and the server's own
LAST_WORDS_S = 10.0  # a trainer may fail before the server that it lost has ended
END_S = 20.0
TAIL_LINES = 15


class NotStarted(RuntimeError):
    """The server ended, or was not ready in time."""


class TooFewGPUs(ValueError):
    """Trainers and server do not fit onto this machine."""


@dataclass
class Server:
    """A running `vllm serve`, the first of its process group."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path
    began: int
    """Where in the log this start begins, bytes."""
    token: str = field(repr=False)
    """Of this start: a port that another program took has heard the one before it."""

    def tail(self) -> str:
        """The last lines that this start wrote."""
        with self.log.open("rb") as file:
            file.seek(max(self.began, self.log.stat().st_size - 65_536))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def lost_its_port(self) -> bool:
        return "address already in use" in self.tail().lower()

    def end(self) -> None:
        """The server, and its engines, which outlive a server that is killed."""
        end(self.process, group=True)


def main(arguments: list[str]) -> int:
    """Serve, run the command, end the server."""
    asked = _parser().parse_args(arguments)
    if asked.slurm and os.environ.get("SLURM_NODEID", "0") != "0":
        os.execvp(asked.command[0], asked.command)  # the server is beside the first process
    job = read_job(Path(asked.job))
    assert isinstance(job, RLJob)
    try:
        ours, servers = shared_gpus(job, asked.trainers) if not asked.by else ({}, {})
        server = start(job, asked, servers)
    except (NotStarted, TooFewGPUs) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, TooFewGPUs) else 1
    try:
        return beside(server, asked.command, ours)
    finally:
        server.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.beside_vllm", allow_abbrev=False)
    parser.add_argument("job")
    parser.add_argument("--trainers", type=int, default=1, help="processes that train here")
    parser.add_argument("--minutes", type=float, default=20.0, help="until the server answers")
    parser.add_argument("--host", default=LOOPBACK, help="address that the server listens on")
    parser.add_argument("--by", default="", help="words before the server's command: elsewhere")
    parser.add_argument("--slurm", action="store_true", help="on the first node of this step only")
    parser.add_argument("command", nargs="+")
    return parser


def shared_gpus(job: RLJob, trainers: int) -> tuple[dict[str, str], dict[str, str]]:
    """What tells the trainers, and the server, their GPUs of this machine; nothing without GPUs.

    Raises TooFewGPUs.
    """
    runtime = job.settings.engine_runtime
    devices = gpus_here()
    if not devices:
        return {}, {}
    needs = runtime.tensor_parallel * runtime.pipeline_parallel * runtime.data_parallel
    if len(devices) < trainers + needs:
        raise TooFewGPUs(
            f"{trainers} GPUs train and the stage's vLLM needs {needs} more (engine_runtime."
            f"tensor_parallel × pipeline_parallel × data_parallel), but there are {len(devices)}: "
            "set topology.rl_gpus to fewer, make the server smaller, or take engine=vllm_colocate"
        )
    shares = devices[:trainers], devices[trainers : trainers + needs]
    ours, servers = ({VISIBLE: ",".join(share)} for share in shares)
    return ours, servers


def gpus_here() -> list[str]:
    """The NVIDIA GPUs of this process, in the words of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        return [d.strip() for d in visible.split(",") if d.strip() not in ("", "-1")]
    return [str(n) for n, _ in enumerate(GPUS_OF_THE_DRIVER.glob("*"))]


def start(job: RLJob, asked: argparse.Namespace, gpus: Mapping[str, str]) -> Server:
    """A server that answers.

    Raises NotStarted with the end of its log; a port that another program took is changed first.
    """
    for attempt in range(1, TRIES + 1):
        server, name = _launched(job, asked, gpus)
        try:
            _wait(server, name, job, asked.minutes)
            return server
        except NotStarted:
            server.end()
            if attempt == TRIES or not server.lost_its_port():
                raise
        except BaseException:
            server.end()
            raise
    raise AssertionError("the last attempt returns or raises")


def _launched(job: RLJob, asked: argparse.Namespace, gpus: Mapping[str, str]) -> tuple[Server, str]:
    port, name = free_port("" if asked.by else asked.host), f"policy-{secrets.token_hex(4)}"
    token = new_token()
    command = serve_command(job, name, asked.host, port, cuda=bool(gpus or asked.by))
    log = job.out / "logs" / "vllm.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        began = file.tell()
        process = subprocess.Popen(
            [*shlex.split(asked.by), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **serve_environment(token), **gpus},
        )
    return Server(process, f"http://{asked.host}:{port}", log, began, token), name


def _wait(server: Server, name: str, job: RLJob, minutes: float) -> None:
    """Until the server, and no other that took its port, answers. Raises NotStarted."""
    progress = ProgressFile(job.out)
    deadline = time.monotonic() + minutes * 60
    while not is_up(server.url, name, server.token):
        progress.report(0, 1, "starting vLLM")
        code = server.process.poll()
        if code is not None:
            raise NotStarted(
                f"the stage's vLLM server ended with exit code {code} before it answered; the log "
                f"is {server.log}, its last lines:\n{server.tail()}"
            )
        if time.monotonic() > deadline:
            raise NotStarted(
                f"the stage's vLLM server did not answer in {minutes:g} minutes (runtime.launch."
                f"server.minutes); the log is {server.log}, its last lines:\n{server.tail()}"
            )
        time.sleep(POLL_S)


def beside(server: Server, command: Sequence[str], gpus: Mapping[str, str]) -> int:
    """The exit code of `command`, or LOST if the server ended before it or with it."""
    told = {URL: server.url, TOKEN: server.token, **without_proxy(server.url)}
    environment = {**os.environ, **told, **gpus}
    process = subprocess.Popen(command, env=environment)
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
    print(
        f"the stage's vLLM server ended with exit code {server.process.returncode} in the middle; "
        f"the log is {server.log}, its last lines:\n{server.tail()}",
        file=sys.stderr,
    )
    return LOST


def end(process: "subprocess.Popen[bytes]", *, group: bool = False) -> None:
    """TERM, and after some patience KILL, to a process, or to the whole group that it led.

    A group may outlive its first process: vLLM's engine does, and keeps its GPU.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign) if group else process.send_signal(sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def _terminated(number: int, _: object) -> None:
    sys.exit(128 + number)  # by way of all `finally`


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main(sys.argv[1:]))
