"""The interpreter inside the sandbox: it forks one isolated process for every test.

It starts once per worker, imports what programs use, and then answers requests on a SOCK_SEQPACKET
socket: in one or two processes that end together (`Spawn`), their limits and their descriptors, out
how they ended (`Ended`). It never sees an expected output, and it never runs or compiles
untrusted code itself: both happen in processes it forks. What it reports about a process is the
kernel's word: wait status and CPU time.

What a process gives up before its role is a list of steps, made before the fork: half of what a
test costs is page faults, and a child copies every page that it writes to. A step that the kernel
refuses ends the process: the judge takes one that reaches the program for an isolated one.
Standard library only: this folder is all of the product that the sandbox holds.
"""

import contextlib
import ctypes
import gc
import itertools
import json
import marshal
import mmap
import os
import random
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypedDict

from klear.eval.sandbox.zygote import asserts as zygote_asserts
from klear.eval.sandbox.zygote import roles as zygote_roles
from klear.eval.sandbox.zygote.roles import Process

_MAX_MESSAGE = 1 << 17
_ANCILLARY = socket.CMSG_SPACE(16 * 4)
_CONTROL_FD, _FIRST_FD = 200, 100  # above the descriptors of a test; where those wait for it
_CLONE_NEWNS, _CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID | MS_NODEV
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_THIS_THREAD = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()

libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL, which fork needs
for _function in (libc.mount, libc.capset, libc.prctl, libc.setrlimit, libc.syscall):
    _function.restype = ctypes.c_long  # looked up once, before the first fork
libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)
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
    seccomp: str  # hexadecimal BPF program; empty: no filter, no namespaces either
    folder: str
    """Where the test may write. Without namespaces it is emptied after each test."""


Spawn = tuple[str, str | None, int]
"""A process to fork: its role, its argument, and how many descriptors of those sent are its own."""
Ended = tuple[int, bool, float, float, int]
"""The kernel's word on a process: wait status, whether a time limit ended it, CPU and wall seconds,
and whether it was isolated when it began its role."""


class _SeccompFilter(ctypes.Structure):
    """struct sock_fprog: the number of 8-byte instructions, and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


class Zygote:
    def __init__(self, control: socket.socket, isolation: Isolation) -> None:
        self.control = control
        self.isolation = isolation
        program = bytes.fromhex(isolation["seccomp"])
        self.seccomp = _SeccompFilter(len(program) // 8, program) if program else None
        self.code = b""  # of the program, marshalled: only children unpack it
        self.isolated = mmap.mmap(-1, mmap.PAGESIZE)  # each child sets its byte, then unmaps it
        sys.setrecursionlimit(50_000)
        sys.set_int_max_str_digits(50_000)
        threading.stack_size(8 << 20)  # the main thread's limit is larger, threads' need not be
        names = zygote_roles.prelude()
        zygote_roles.open_streams()
        self.script, self.solution = Process("__main__", names), Process("solution", names)
        self.tests = Process("tests", names | zygote_asserts.PROVIDED)
        sys.argv = ["solution.py"]
        random.seed(0)  # the same program gets the same verdict
        gc.collect()
        libc.malloc_trim(0)
        gc.freeze()

    def serve_requests(self) -> None:
        """Until the judge's end of the socket closes."""
        self.control.send(b'{"ready": true}')
        while message := self.control.recvmsg(_MAX_MESSAGE, _ANCILLARY):
            data, ancillary = message[0], message[1]
            if not data:
                return
            fds = [fd for _, _, payload in ancillary for fd in memoryview(payload).cast("i")]
            spawns, limits = json.loads(data)
            ended = self.run(spawns, fds, limits)
            if spawns[0][0] == "compile" and ended[0][0] == 0:
                self.code = _all_of(fds[3])
            for fd in fds:
                os.close(fd)
            self.control.send(json.dumps(ended).encode())

    def run(self, spawns: list[Spawn], fds: list[int], limits: Limits) -> list[Ended]:
        """Fork all processes, wait for the last of them, end the others."""
        pair = socket.socketpair() if len(spawns) == 2 else ()  # the program and its tests talk
        started = time.monotonic()
        left, pids = iter(fds), list[int]()
        for i, (role, argument, count) in enumerate(spawns):
            own = [*itertools.islice(left, count), *(end.fileno() for end in pair[i : i + 1])]
            pids.append(self._start(i, role, argument, self._steps(own, limits)))
        for end in pair:
            end.close()
        timed_out = self._wait(pids, limits, started)
        ended: list[Ended] = []
        for i, pid in enumerate(pids):
            _, status, usage = os.wait4(pid, 0)
            cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - started
            ended.append((status, timed_out, cpu_s, wall_s, self.isolated[i]))
        if not self.seccomp:
            shutil.rmtree(self.isolation["folder"], ignore_errors=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.isolation["folder"])  # alone: where the judge's is gone, it has ended
        return ended

    def _wait(self, pids: list[int], limits: Limits, started: float) -> bool:
        """Wait for the last process and kill the others; whether a time limit ended it."""
        pidfds = [os.pidfd_open(pid) for pid in pids]
        poll = select.poll()
        poll.register(pidfds[-1], select.POLLIN)
        poll.register(_CONTROL_FD, 0)  # reports the hang-up only
        events: list[tuple[int, int]] = []
        while not events:
            left = limits["wall_s"] - (time.monotonic() - started)
            left = min(left, limits["cpu_s"] - max(map(_cpu_seconds, pids)))
            if left <= 0:
                break
            events = poll.poll(max(1.0, left * 1000))
            if any(fd == _CONTROL_FD for fd, _ in events):
                os._exit(0)  # the judge is gone; the PID namespace takes the tests along
        for pid, pidfd in zip(pids, pidfds, strict=True):
            if not events or pid != pids[-1]:
                os.kill(pid, signal.SIGKILL)
            os.close(pidfd)
        return not events

    def _start(self, index: int, role: str, argument: str | None, steps: list[Step]) -> int:
        """Fork. The child takes its steps, then plays its role, and never returns."""
        self.isolated[index] = 0
        # Without Python's fork hooks: they renew locks of other threads, and there are none.
        pid = libc.syscall(*_FORK) if self.seccomp else os.fork()
        if pid < 0:
            raise _refused("clone")
        if pid:
            return pid
        try:
            for call, arguments in steps:
                if call(*arguments) == -1:
                    raise _refused(call.__name__)
            self.isolated[index] = 1
            self.isolated.close()
            process = self.script if role in ("stdin", "checker") else self.solution
            process = self.tests if role == "asserts" else process
            os._exit(process.run(lambda: self._play(process, role, argument)))
        finally:
            os._exit(1)

    def _steps(self, fds: list[int], limits: Limits) -> list[Step]:
        """What a child does before its role, in the order that the kernel demands."""
        folder, uid = self.isolation["folder"], self.isolation["uid"]
        steps: list[Step] = [(os.dup2, (fd, _FIRST_FD + i)) for i, fd in enumerate(fds)]
        steps += [(os.dup2, (_FIRST_FD + i, i)) for i in range(len(fds))]
        steps.append((os.closerange, (len(fds), 1 << 20)))
        steps.append((os.setsid, ()))  # kill(0, …) must not reach the group outside
        if self.seccomp:
            options = b"size=64m,nr_inodes=4k,mode=1777"
            mount = (b"none", folder.encode(), b"tmpfs", _MOUNT_FLAGS, options)
            steps.append((libc.mount, mount))
        steps.append((os.chdir, (folder,)))
        values = {
            # Hard CPU limit: SIGKILL, because process 1 of a PID namespace ignores SIGXCPU.
            resource.RLIMIT_CPU: int(limits["cpu_s"]) + 1,
            resource.RLIMIT_AS: limits["memory"],
            resource.RLIMIT_FSIZE: limits["output"],
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_CORE: 0,
        }
        if self.seccomp:  # the limit counts every process of the user
            values[resource.RLIMIT_NPROC] = 64
        for which, value in values.items():
            steps.append((libc.setrlimit, (which, (ctypes.c_uint64 * 2)(value, value))))
        if uid is not None:
            steps.append((os.setgroups, ([],)))
            steps.append((os.setresgid, (uid, uid, uid)))
            steps.append((os.setresuid, (uid, uid, uid)))
        steps.append((libc.capset, (_THIS_THREAD, _NO_CAPABILITIES)))
        steps.append((libc.prctl, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
        # Not every sandbox ends with the zygote. A change of user forgets this: it comes after.
        steps.append((libc.prctl, (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)))
        if self.seccomp:
            steps.append((libc.prctl, (_PR_SET_SECCOMP, 2, ctypes.byref(self.seccomp), 0, 0)))
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
    control = socket.socket(fileno=_CONTROL_FD)
    Zygote(control, json.loads(control.recv(_MAX_MESSAGE))).serve_requests()
