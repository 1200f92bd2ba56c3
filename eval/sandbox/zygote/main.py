"""The interpreter inside the sandbox: it forks one isolated process for every test.

It starts once per worker, imports what programs use, and answers requests on a SOCK_SEQPACKET
socket: in one or two processes that end together (`Spawn`), their limits and descriptors, out how
they ended (`ENDED`), by the kernel's word. It never sees an expected output, nor runs or compiles
untrusted code itself. What a process gives up before its role is a list of steps, made before the
fork; a step that the kernel refuses ends it: one that reaches the program counts as isolated.

A test costs what its pages cost: a fork copies the table of them, and a child each page that it
looks at. So there are no imports here that programs do not need (`shutil`, `socket`, `select`,
`mmap` and `resource` were a tenth of a test), and the roles have been played before the first fork.
Standard library only: this folder is all of the product that the sandbox holds.
"""

import _socket
import contextlib
import ctypes
import functools
import gc
import json
import marshal
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypedDict

from . import asserts as zygote_asserts
from . import roles as zygote_roles
from . import values as zygote_values
from .roles import Process

_MAX_MESSAGE = 1 << 17
_ANCILLARY = _socket.CMSG_SPACE(16 * 4)
_CONTROL_FD, _MOST_FDS = 60, 64  # above the descriptors of a test, 0 to 3; of those it may open
_CLONE_NEWNS, _CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID | MS_NODEV
_RLIMIT_CPU, _RLIMIT_FSIZE, _RLIMIT_CORE = 0, 1, 4
_RLIMIT_NPROC, _RLIMIT_NOFILE, _RLIMIT_AS = 6, 7, 9
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_THIS_THREAD = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
_POLLED = ctypes.c_int * 4

libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL, which fork needs
for _function in (libc.mount, libc.capset, libc.prctl, libc.setrlimit, libc.syscall):
    _function.restype = ctypes.c_long  # looked up once, before the first fork
libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)
_clone, _poll = libc.syscall, libc.poll
_FORK_FLAGS = signal.SIGCHLD | _CLONE_NEWPID | _CLONE_NEWNS
_FORK = tuple(map(ctypes.c_long, (_SYS_CLONE.get(os.uname().machine, -1), _FORK_FLAGS, 0, 0, 0, 0)))

Step = tuple[Callable[..., Any], tuple[Any, ...]]  # a call and its arguments


class Limits(TypedDict):
    """CPU and wall seconds, bytes of address space, bytes of any file written."""

    cpu_s: float
    wall_s: float
    memory: int
    output: int


class Isolation(TypedDict):
    """How to isolate; told to the zygote when it starts."""

    uid: int | None
    seccomp: list[str]
    """BPF programs in hexadecimal, for the zygote and on top of it for a child; without any there
    are no namespaces either."""
    folder: str  # Where the test may write. Without namespaces it is emptied after each test.


Spawn = tuple[str, str | None, int]
"""A process to fork: its role, its argument, and how many descriptors of those sent are its own."""
ENDED = struct.Struct("i?dd?")
"""The kernel's word on a process: wait status, whether a time limit ended it, CPU and wall seconds,
and whether it was isolated when it began its role."""


_ADD = "def add(a, b): return a + b"
_SAMPLES = (  # a role, a program, its standard input, what the other end of the channel says
    ("compile", "", _ADD, ""),
    ("stdin", "a, b = map(int, input().split())\nprint(a + b)", "1 2\n", ""),
    ("call", _ADD, '{"args": [1, 2], "names": []}', ""),
    ("serve", _ADD, "", '["add", null, [1, 2], [], [], false]\n'),
    ("asserts", "", "x = add(1, 2)\nassert abs(x - 3) < 1e-6", '"ready"\n{"values": [3, 1, 2]}\n'),
)
_REHEARSALS = 10  # code is specialized in its ninth call


class _SeccompFilter(ctypes.Structure):
    """struct sock_fprog: the number of 8-byte instructions, and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Zygote:
    def __init__(self, control: _socket.socket, isolation: Isolation) -> None:
        self.control = control
        self.isolation = isolation
        self.filters = [
            _SeccompFilter(len(p) // 8, p) for p in map(bytes.fromhex, isolation["seccomp"])
        ]
        self.code = b""  # of the program, marshalled: only children unpack it
        self.isolated = os.memfd_create("isolated")  # each child writes its byte, then closes it
        sys.setrecursionlimit(50_000)
        sys.set_int_max_str_digits(50_000)
        threading.stack_size(8 << 20)  # the main thread's limit is larger, threads' need not be
        names = zygote_roles.prelude()
        self._rehearse(names)
        zygote_roles.open_streams()
        self.script, self.solution = Process("__main__", names), Process("solution", names)
        self.solution.globals.update(zygote_values.FOR_PROGRAMS)
        self.tests = Process("tests", names | zygote_asserts.PROVIDED)
        sys.argv = ["solution.py"]
        random.seed(0)  # the same program gets the same verdict
        gc.collect()
        libc.malloc_trim(0)
        steps = [*map(_limiting, (_RLIMIT_NOFILE, _RLIMIT_CORE), (_MOST_FDS, 0))]
        steps.append((libc.prctl, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
        _take(steps + [_filtering(program) for program in self.filters[:1]])

    def _rehearse(self, names: dict[str, Any]) -> None:
        """Play the roles on samples: Python specializes its code and fills its caches, which each
        child would do again, in pages of its own."""
        zygote_roles.open_streams()
        gc.freeze()
        for role, program, stdin, reply in _SAMPLES * _REHEARSALS:
            self.code = marshal.dumps(compile(program, "solution.py", "exec"))
            stdin_bytes = stdin.encode()
            if role == "asserts":
                stdin_bytes = marshal.dumps((compile(stdin, "tests.py", "exec"), ["add"], [], []))
            os.ftruncate(0, os.pwrite(0, stdin_bytes, 0))
            sys.stdin.seek(0)
            ours, theirs = _socket.socketpair()
            theirs.send(reply.encode())
            theirs.shutdown(_socket.SHUT_WR)
            os.dup2(ours.fileno(), 3)
            process = Process("tests", names | zygote_asserts.PROVIDED)
            if process.run(self._play, process, role, "add"):
                raise RuntimeError(f"role {role} failed")
            ours.close()
            theirs.close()
        os.dup2(_CONTROL_FD, 3)
        gc.unfreeze()

    def serve_requests(self) -> None:
        """Until the judge's end of the socket closes."""
        self.control.send(b"ready")
        while message := self.control.recvmsg(_MAX_MESSAGE, _ANCILLARY):
            data, ancillary = message[0], message[1]
            if not data:
                return
            fds = [fd for _, _, own in ancillary for fd in memoryview(own).cast("i").tolist()]
            spawns, limits = marshal.loads(data)
            self.control.send(self.run(spawns, fds, limits))

    def run(self, spawns: list[Spawn], fds: list[int], limits: Limits) -> bytes:
        """Fork all processes, wait for the last of them, end the others; as `ENDED`, one by one."""
        started = time.monotonic()
        pids, first = list[int](), 0
        os.pwrite(self.isolated, bytes(2), 0)
        gc.freeze()  # what a child finds among its objects is its own
        for i, (role, argument, count) in enumerate(spawns):
            own, first = tuple(fds[first : first + count]), first + count
            steps = self._steps(i, own, limits["cpu_s"], limits["memory"], limits["output"])
            pids.append(self._start(role, argument, steps))
        result = fds.pop() if spawns[0][0] == "compile" else None
        for fd in fds:  # now, or a process would not see that the other has ended
            os.close(fd)
        timed_out = self._wait(pids, limits, started)
        isolated, ended = os.pread(self.isolated, 2, 0), b""
        for i, pid in enumerate(pids):
            cpu_s, wall_s = _cpu_seconds(pid), time.monotonic() - started
            _, status = os.waitpid(pid, 0)
            ended += ENDED.pack(status, timed_out, cpu_s, wall_s, isolated[i])
        if result is not None:
            self.code = _all_of(result)  # where it failed, the judge runs nothing
            os.close(result)
        if not self.filters:
            import shutil  # only here: see above

            shutil.rmtree(self.isolation["folder"], ignore_errors=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.isolation["folder"])  # alone: where the judge's is gone, it has ended
        return ended

    def _wait(self, pids: list[int], limits: Limits, started: float) -> bool:
        """Wait for the last process and kill the others; whether a time limit ended it."""
        pidfd = os.pidfd_open(pids[-1])
        # Two struct pollfd: in the upper halves is what came, of the second the hang-up only.
        polled = _POLLED(pidfd, 1, _CONTROL_FD, 0)
        while not polled[1] >> 16:
            left = limits["wall_s"] - (time.monotonic() - started)
            left = min(left, limits["cpu_s"] - max(map(_cpu_seconds, pids)))
            if left <= 0:
                break
            _poll(polled, 2, max(1, int(left * 1000)))
            if polled[3]:
                os._exit(0)  # the judge is gone; the PID namespace takes the tests along
        ended = bool(polled[1] >> 16)
        os.close(pidfd)
        for pid in pids[: -1 if ended else None]:
            os.kill(pid, signal.SIGKILL)
        return not ended

    def _start(self, role: str, argument: str | None, steps: list[Step]) -> int:
        """Fork. The child takes its steps, then plays its role, and never returns."""
        # Without Python's fork hooks: they renew locks of other threads, and there are none.
        pid = _clone(*_FORK) if self.filters else os.fork()
        if pid < 0:
            raise _refused("clone")
        if pid:
            return pid
        try:
            _take(steps)
            process = self.script if role in ("stdin", "checker") else self.solution
            process = self.tests if role == "asserts" else process
            os._exit(process.run(self._play, process, role, argument))
        finally:
            os._exit(1)

    @functools.lru_cache(maxsize=64)  # noqa: B019 (there is one zygote)
    def _steps(
        self, index: int, fds: tuple[int, ...], cpu_s: float, memory: int, output: int
    ) -> list[Step]:
        """What a child does before its role, in the order that the kernel demands."""
        folder, uid = self.isolation["folder"], self.isolation["uid"]
        steps: list[Step] = [(os.dup2, (fd, i)) for i, fd in enumerate(fds)]
        steps.append((os.dup2, (self.isolated, len(fds))))
        steps.append((os.closerange, (len(fds) + 1, 1 << 20)))
        steps.append((os.setsid, ()))  # kill(0, …) must not reach the group outside
        if self.filters:
            options = b"size=64m,nr_inodes=4k,mode=1777"
            mount = (b"none", folder.encode(), b"tmpfs", _MOUNT_FLAGS, options)
            steps.append((libc.mount, mount))
        steps.append((os.chdir, (folder,)))
        # Hard CPU limit: SIGKILL, because process 1 of a PID namespace ignores SIGXCPU.
        values = {_RLIMIT_CPU: int(cpu_s) + 1, _RLIMIT_AS: memory, _RLIMIT_FSIZE: output}
        if self.filters:  # the limit counts every process of the user
            values[_RLIMIT_NPROC] = 64
        for which, value in values.items():
            steps.append(_limiting(which, value))
        if uid is not None:
            steps.append((os.setgroups, ([],)))
            steps.append((os.setresgid, (uid, uid, uid)))
            steps.append((os.setresuid, (uid, uid, uid)))
        steps.append((libc.capset, (_THIS_THREAD, _NO_CAPABILITIES)))
        # Not every sandbox ends with the zygote. A change of user forgets this: it comes after.
        steps.append((libc.prctl, (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)))
        if self.filters:
            steps.append(_filtering(self.filters[1]))
        steps.append((os.pwrite, (len(fds), b"\1", index)))
        steps.append((os.close, (len(fds),)))
        return steps

    def _play(self, process: Process, role: str, argument: str | None) -> None:
        if role == "compile":
            return zygote_roles.compile_program(_all_of(0))
        if role == "checker":
            return zygote_roles.check(process, json.loads(_all_of(3)))
        if role == "asserts":
            return zygote_asserts.run_tests(process, _all_of(0))
        code = marshal.loads(self.code)
        if role == "serve":
            return zygote_asserts.serve(process, code, argument)
        if role == "call":
            return zygote_roles.call(process, code, str(argument), _all_of(0))
        exec(code, process.globals)


def _limiting(which: int, value: int) -> Step:
    return libc.setrlimit, (which, (ctypes.c_uint64 * 2)(value, value))


def _filtering(program: _SeccompFilter) -> Step:
    return libc.prctl, (_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


def _take(steps: list[Step]) -> None:
    for call, arguments in steps:
        if call(*arguments) == -1:
            raise _refused(call.__name__)


def _refused(what: str) -> OSError:
    error = libc.__errno_location().contents.value
    return OSError(error, f"{what}: {os.strerror(error)}")


def _all_of(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process, by its clock: (~pid << 3) | CPUCLOCK_SCHED."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # it has ended


def main() -> None:
    """Entry point of the bootstrap: the first message on descriptor 0 says how to isolate."""
    os.dup2(0, _CONTROL_FD)  # descriptor 0 becomes the standard input
    os.dup2(0, 3)  # keeps the place: what arrives for a test lies above the test's own descriptors
    control = _socket.socket(fileno=_CONTROL_FD)
    Zygote(control, json.loads(control.recv(_MAX_MESSAGE))).serve_requests()
