"""Run untrusted programs: one sandbox, one interpreter in it, one isolated process per test.

`Sandbox` lives in a trusted worker and owns everything that decides a verdict. Programs get their
input in a memory file and write their output to another; what is known about them afterwards is
those bytes and the kernel's word (wait status, CPU time, peak memory).
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from eval import sandbox_backends
from eval.sandbox_errors import SandboxDied, SandboxUnavailable
from eval.zygote import Ended, Spawn
from eval.zygote_isolation import Limits

_ZYGOTE = [
    "zygote_isolation",
    "zygote_nodes",
    "zygote_roles",
    "zygote_values",
    "zygote_asserts",
    "zygote_warmup",
    "zygote",
]  # in import order
_START_S, _GRACE_S, _DYING_S = 20.0, 10.0, 1.0
_STARTS = 3
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what it started
_STACK_BYTES = 512 << 20
_STDERR_TAIL = 2000


@dataclass(frozen=True)
class Outcome:
    """One process that has ended. Outputs are untrusted bytes."""

    status: int
    """Wait status, as `os.waitstatus_to_exitcode` reads it."""
    timed_out: bool
    cpu_s: float
    wall_s: float
    peak_kb: int
    stdout: bytes = b""
    stderr: bytes = b""
    result: bytes = b""

    @property
    def exit_code(self) -> int:
        """0 to 255, or minus the signal that killed the process."""
        return os.waitstatus_to_exitcode(self.status)

    @property
    def last_error_line(self) -> str:
        lines = self.stderr[-_STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Sandbox:
    """One sandboxed interpreter; a context manager. Not thread-safe.

    Raises SandboxUnavailable when it cannot start, SandboxDied when it stops answering.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the interpreter; again if it is killed meanwhile."""
        for attempt in range(_STARTS):
            try:
                return self._start()
            except SandboxDied as error:
                if attempt + 1 == _STARTS:
                    raise SandboxUnavailable(f"{self.backend} was killed: {error}") from None

    def _start(self) -> None:
        folder = None
        if self.backend in sandbox_backends.WITH_FOLDER:
            self._folder = tempfile.TemporaryDirectory(
                prefix="klear-sandbox-", ignore_cleanup_errors=True
            )
            folder = Path(self._folder.name)
        launch = sandbox_backends.prepare(self.backend, folder)
        with contextlib.suppress(ValueError, OSError):  # deep recursion in C needs stack
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = sandbox_backends.start(launch, theirs.fileno())
        theirs.close()
        sources = [(name, Path(__file__).with_name(f"{name}.py").read_text()) for name in _ZYGOTE]
        try:
            self._control.send(json.dumps(sources).encode())
            self._control.send(json.dumps(launch.isolation).encode())
            self._receive(_START_S)
        except (SandboxDied, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_DYING_S)
            status = self._process.poll()
            self._process.kill()
            errors = self._process.communicate()[1]
            self.close()
            if status in _KILLED:
                raise SandboxDied("while it started") from None
            raise SandboxUnavailable(
                sandbox_backends.explain_failure(self.backend, errors)
            ) from None

    def close(self) -> None:
        """End the interpreter and everything in it."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._control = self._process = self._folder = None

    def compile(self, program: bytes, limits: Limits) -> Outcome:
        """Compile and keep `program`; the next runs are of it. A failure is a compile error."""
        return self._run("compile", [_Plan("compile", None, program, b"")], limits)[0]

    def run(self, stdin: bytes, limits: Limits) -> Outcome:
        """Run the program on `stdin`."""
        return self._run("run", [_Plan("stdin", None, stdin)], limits)[0]

    def call(self, function: str, arguments: bytes, limits: Limits) -> Outcome:
        """Call `function` with a JSON list of arguments, or {"args", "names"} where the last ones
        have names; `result` is the JSON it returned."""
        return self._run("run", [_Plan("call", function, arguments, b"")], limits)[0]

    def asserts(self, tests: str, function: str | None, limits: Limits) -> tuple[Outcome, Outcome]:
        """The outcomes of the program and of the tests, which run in a process of their own."""
        plans = [_Plan("serve", function, b""), _Plan("asserts", function, tests.encode())]
        program, verdict = self._run("run", plans, limits)
        return program, verdict

    def check(self, checker: str, files: dict[str, bytes], limits: Limits) -> Outcome:
        """Run a trusted checker on `files`: their names are argv[1:], the second is its stdin."""
        texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
        request = json.dumps({"checker": checker, "files": texts}).encode()
        plan = _Plan("checker", None, list(files.values())[1], request)
        return self._run("run", [plan], limits)[0]

    def _run(self, op: str, plans: Sequence["_Plan"], limits: Limits) -> list[Outcome]:
        fds: list[int] = []
        spawns: list[Spawn] = []
        for plan in plans:
            mine = [_memory_file(plan.stdin), _memory_file(), _memory_file()]
            mine += [] if plan.extra is None else [_memory_file(plan.extra)]
            indices = list(range(len(fds), len(fds) + len(mine)))
            spawns.append(Spawn(role=plan.role, argument=plan.argument, fds=indices, limits=limits))
            fds += mine
        try:
            reply = self._ask({"op": op, "processes": spawns}, fds, limits["wall_s"] + _GRACE_S)
            return [
                _outcome(Ended(*ended), [fds[k] for k in spawn["fds"]])
                for ended, spawn in zip(reply, spawns, strict=True)
            ]
        finally:
            for fd in fds:
                os.close(fd)

    def _ask(self, request: dict[str, Any], fds: list[int], timeout_s: float) -> Any:
        if self._control is None:
            raise SandboxDied("the sandbox is closed")
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        except OSError as error:
            raise SandboxDied(f"the sandbox is gone: {error}") from error
        return self._receive(timeout_s)

    def _receive(self, timeout_s: float) -> Any:
        assert self._control is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise SandboxDied(f"the sandbox did not answer in {timeout_s:.0f} s")
        try:
            data = self._control.recv(1 << 17)
        except OSError as error:
            raise SandboxDied(f"the sandbox is gone: {error}") from error
        if not data:
            raise SandboxDied("the sandbox ended")
        return json.loads(data)


@dataclass(frozen=True)
class _Plan:
    role: str
    argument: str | None
    stdin: bytes
    extra: bytes | None = None
    """Descriptor 3: what the role reads there, or b"" to write a result."""


def _memory_file(data: bytes = b"") -> int:
    fd = os.memfd_create("klear", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _outcome(ended: Ended, fds: list[int]) -> Outcome:
    if not ended.isolated:
        message = os.pread(fds[2], _STDERR_TAIL, 0).decode("utf-8", "replace").strip()
        raise SandboxDied(f"a test could not be isolated: {message[-300:]}")
    contents = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds[1:]]
    stdout, stderr, result = (*contents, b"")[:3]
    return Outcome(
        status=ended.status,
        timed_out=bool(ended.timed_out),
        cpu_s=ended.cpu_s,
        wall_s=ended.wall_s,
        peak_kb=ended.peak_kb,
        stdout=stdout,
        stderr=stderr,
        result=result,
    )
