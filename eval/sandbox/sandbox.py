"""Run untrusted programs: one sandbox, one interpreter in it, one isolated process per test.

`Sandbox` lives in a trusted worker and owns everything that decides a verdict. Programs read and
write memory files; afterwards those bytes and the kernel's word (wait status, CPU time) count. With
backend bubblewrap the interpreter has an empty root, no network and its own PIDs, each test a PID
and mount namespace, seccomp and rlimits, as root also a user id of its own; with `none` a test has
rlimits and a cleared folder.
"""

import contextlib
import json
import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ...configs.files import PACKAGE
from . import SandboxDied, SandboxUnavailable
from .bubblewrap import ENVIRONMENT, bubblewrap, package_folders, seccomp_programs
from .zygote.main import ENDED, Isolation, Limits

_START_S, _GRACE_S, _DYING_S = 60.0, 10.0, 1.0
_SLEPT_S = 1.0  # a busy machine keeps a program waiting too, but not for so long without a turn
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what it started
_STACK_BYTES = 512 << 20
_STDERR_TAIL = 2000

# Before any import: `threading` and `random` would renew themselves in every forked child, which
# costs a third of a test and is for processes with threads.
_BOOTSTRAP = """
import os
os.register_at_fork = lambda **_: None
from klear.eval.sandbox.zygote.main import main
main()
"""
_ARGUMENTS = ("-s", "-S", "-P", "-c", _BOOTSTRAP)


@dataclass(frozen=True)
class ProcessResult:
    """One process that has ended. Outputs are untrusted bytes."""

    exit_code: int  # 0 to 255, or minus the signal that killed the process
    timed_out: bool
    cpu_s: float
    wall_s: float
    last_error_line: str
    stdout: bytes = b""
    result: bytes = b""


class Sandbox:
    """One sandboxed interpreter; a context manager. Not thread-safe. Raises SandboxUnavailable when
    it cannot start, SandboxDied when it stops answering."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._control: socket.socket | None = None
        self._running = contextlib.ExitStack()
        self._may_try_again = True
        self.waited_s = 0.0
        """In which this program slept: of runs that took long and hardly any CPU time."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the interpreter. Raises SandboxDied when it is killed meanwhile."""
        isolation = Isolation(uid=None, seccomp=[], folder="/tmp")
        if self.backend == "bubblewrap":
            isolation["seccomp"] = [program.hex() for program in seccomp_programs()]
            isolation["uid"] = 61_000 + os.getpid() % 4_000 if os.geteuid() == 0 else None
            command, environment = bubblewrap(_ARGUMENTS), {}
        else:
            folder = tempfile.TemporaryDirectory(
                prefix="klear-sandbox-", ignore_cleanup_errors=True
            )
            isolation["folder"] = self._running.enter_context(folder)
            command = [str(Path(sys.executable).resolve()), *_ARGUMENTS]
            paths = dict.fromkeys(
                [PACKAGE.parent, *(folder.parent for folder in package_folders())]
            )
            environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        with contextlib.suppress(ValueError, OSError):  # deep recursion in C needs stack
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self._running.enter_context(process)  # waits for its end
        self._running.callback(process.kill)
        self._running.enter_context(self._control)
        try:
            self._control.send(json.dumps(isolation).encode())
            self._receive(_START_S)
        except (SandboxDied, OSError):
            status, errors = None, b""
            with contextlib.suppress(subprocess.TimeoutExpired):
                errors = process.communicate(timeout=_DYING_S)[1]
                status = process.returncode
            self.close()
            if status in _KILLED:
                raise SandboxDied("while it started") from None
            raise SandboxUnavailable(
                f"{self.backend} cannot isolate on this machine "
                f"({_last_line(errors) or 'it ended without a message'}): allow user namespaces "
                "(in a container: --privileged or --cap-add=SYS_ADMIN)"
            ) from None

    def close(self) -> None:
        self._running.close()
        self._control = None

    def compile(self, program: bytes, limits: Limits) -> ProcessResult:
        """Compile and keep `program`; the next runs are of it. A failure is a compile error."""
        self._may_try_again, self.waited_s = True, 0.0
        return self._run([("compile", None, program, b"")], limits)[0]

    def run(self, stdin: bytes, limits: Limits) -> ProcessResult:
        return self._run([("stdin", None, stdin)], limits)[0]

    def call(self, function: str, arguments: bytes, limits: Limits) -> ProcessResult:
        """Call `function` with the JSON that role `call` reads; `result` is JSON too."""
        return self._run([("call", function, arguments, b"")], limits)[0]

    def asserts(
        self, tests: bytes, function: str | None, limits: Limits
    ) -> tuple[ProcessResult, ProcessResult]:
        """The outcomes of the program and of the tests, which run in a process of their own."""
        processes = [("serve", function, b""), ("asserts", None, tests)]
        program, verdict = self._run(processes, limits)
        return program, verdict

    def check(self, checker: str, files: dict[str, bytes], limits: Limits) -> ProcessResult:
        """Run a trusted checker on `files`: their names are argv[1:], the second is its stdin."""
        texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
        request = json.dumps({"checker": checker, "files": texts}).encode()
        return self._run([("checker", None, list(files.values())[1], request)], limits)[0]

    def _run(self, processes: list[tuple[Any, ...]], limits: Limits) -> list[ProcessResult]:
        """As `_run_once`. A time-out with hardly any CPU time used may be a machine that stood
        still, so the processes of a program have one second try in all."""
        outcomes = self._run_once(processes, limits)
        idle = any(o.timed_out and o.cpu_s < limits["cpu_s"] / 10 for o in outcomes)
        if idle and self._may_try_again:
            self._may_try_again = False
            outcomes = self._run_once(processes, limits)
        wall_s = outcomes[-1].wall_s
        if wall_s > _SLEPT_S and sum(o.cpu_s for o in outcomes) < wall_s / 20:
            self.waited_s += wall_s
        return outcomes

    def _run_once(self, processes: list[tuple[Any, ...]], limits: Limits) -> list[ProcessResult]:
        """Each process: role, argument, standard input, and descriptor 3 (b"": for its result)."""
        if self._control is None:
            raise SandboxDied("the sandbox is closed")
        files = [
            [_memory_file(data) for data in (stdin, b"", b"", *extra)]
            for _, _, stdin, *extra in processes
        ]
        opened = [fd for fds in files for fd in fds]
        sent = [list(fds) for fds in files]
        try:
            with contextlib.ExitStack() as ends:
                if len(processes) == 2:  # which talk on descriptor 3
                    for fds, end in zip(sent, socket.socketpair(), strict=True):
                        fds.append(ends.enter_context(end).fileno())
                spawns = [(*p[:2], len(fds)) for p, fds in zip(processes, sent, strict=True)]
                request: Any = (spawns, limits)
                every_fd = [fd for fds in sent for fd in fds]
                socket.send_fds(self._control, [marshal.dumps(request)], every_fd)
            reply = ENDED.iter_unpack(self._receive(limits["wall_s"] + _GRACE_S))
            return [_outcome(ended, fds) for ended, fds in zip(reply, files, strict=True)]
        except OSError as error:
            raise SandboxDied(f"the sandbox is gone: {error}") from error
        finally:
            for fd in opened:
                os.close(fd)

    def _receive(self, timeout_s: float) -> bytes:
        assert self._control is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise SandboxDied(f"the sandbox did not answer in {timeout_s:.0f} s")
        if data := self._control.recv(1 << 17):
            return data
        raise SandboxDied("the sandbox ended")


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("klear", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _outcome(ended: tuple[Any, ...], fds: list[int]) -> ProcessResult:
    _, stdout, stderr, *result = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds)
    status, timed_out, cpu_s, wall_s, isolated = ended
    if not isolated:
        raise SandboxDied(f"a test could not be isolated: {_last_line(stderr)}")
    exit_code = os.waitstatus_to_exitcode(status)
    return ProcessResult(exit_code, timed_out, cpu_s, wall_s, _last_line(stderr), stdout, *result)


def _last_line(errors: bytes) -> str:
    lines = errors[-_STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
