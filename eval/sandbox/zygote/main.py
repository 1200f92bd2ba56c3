"""The interpreter inside the sandbox: it forks one isolated process for every test.

It starts once per worker, imports what programs use, and then answers requests on a SOCK_SEQPACKET
socket: in a list of one or two processes (`Spawn`) that end together, with their descriptors, out a
list of how they ended (`Ended`). It never sees an expected output, and it never runs or compiles
untrusted code itself: both happen in processes it forks. What it reports about a process is the
kernel's word: wait status, CPU time and peak memory.

Half of what a test costs is page faults: a child copies every page that it writes to, and so does
this process after each fork. So what can be made before the fork is made once.
"""

import gc
import json
import marshal
import mmap
import os
import random
import select
import shutil
import socket
import sys
import threading
import time
from typing import Any, NamedTuple, TypedDict

from eval.sandbox.zygote import asserts as zygote_asserts
from eval.sandbox.zygote import roles as zygote_roles
from eval.sandbox.zygote.isolation import (
    Isolation,
    Limits,
    Step,
    fork,
    isolation_steps,
    libc,
    seccomp_filter,
    take_steps,
)
from eval.sandbox.zygote.roles import Process

_MAX_MESSAGE = 1 << 17
_ANCILLARY = socket.CMSG_SPACE(16 * 4)
_CONTROL_FD, _FIRST_FD = 200, 100  # above the descriptors of a test; where those wait for it


class Spawn(TypedDict):
    """One process to fork. `fds` index the descriptors sent along, in the order 0, 1, 2, 3."""

    role: str
    argument: str | None
    fds: list[int]
    limits: Limits


class Ended(NamedTuple):
    """The kernel's word on one process. `isolated` is 0 when isolation itself failed."""

    status: int
    timed_out: bool
    cpu_s: float
    wall_s: float
    peak_kb: int
    isolated: int


class Zygote:
    def __init__(self, control: socket.socket, isolation: Isolation) -> None:
        self.control = control
        self.isolation = isolation
        self.seccomp = seccomp_filter(bytes.fromhex(isolation["seccomp"]))
        self.code = b""
        """Of the program, marshalled: only children unpack it."""
        self.isolated = mmap.mmap(-1, mmap.PAGESIZE)  # each child sets its byte, then unmaps it
        sys.setrecursionlimit(50_000)
        sys.set_int_max_str_digits(50_000)
        threading.stack_size(8 << 20)  # the main thread's limit is larger, threads' need not be
        names = zygote_roles.prelude()
        zygote_roles.open_streams()
        modules = [zygote_roles.module_named(name, names) for name in ("__main__", "solution")]
        sys.modules.update((module.__name__, module) for module in modules)
        sys.argv = ["solution.py"]
        random.seed(0)  # the same program gets the same verdict
        self.script, self.solution = (Process(module, names) for module in modules)
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
            spawns: list[Spawn] = json.loads(data)
            ended = self.run(spawns, fds[:])
            if spawns[0]["role"] == "compile" and ended[0].status == 0:
                self.code = _all_of(fds[3])
            for fd in fds:
                os.close(fd)
            self.control.send(json.dumps(ended).encode())

    def run(self, spawns: list[Spawn], fds: list[int]) -> list[Ended]:
        """Fork all processes, wait for the last of them, end the others."""
        pair = socket.socketpair() if len(spawns) == 2 else ()
        for spawn, end in zip(spawns, pair, strict=False):  # the program and its tests talk over it
            spawn["fds"].append(len(fds))
            fds.append(end.fileno())
        started = time.monotonic()
        pids = [self._start(i, spawn, fds) for i, spawn in enumerate(spawns)]
        for end in pair:
            end.close()
        timed_out = self._wait(pids, spawns, started)
        ended: list[Ended] = []
        for i, pid in enumerate(pids):
            _, status, usage = os.wait4(pid, 0)
            cpu_s, wall_s = usage.ru_utime + usage.ru_stime, time.monotonic() - started
            peak, isolated = usage.ru_maxrss, self.isolated[i]
            ended.append(Ended(status, timed_out, cpu_s, wall_s, peak, isolated))
        if not self.isolation["namespaces"]:
            shutil.rmtree(self.isolation["folder"], ignore_errors=True)
            os.makedirs(self.isolation["folder"], exist_ok=True)
        return ended

    def _wait(self, pids: list[int], spawns: list[Spawn], started: float) -> bool:
        """Wait for the last process and kill the others; whether a time limit ended it."""
        pidfds = [os.pidfd_open(pid) for pid in pids]
        poll = select.poll()
        poll.register(pidfds[-1], select.POLLIN)
        poll.register(_CONTROL_FD, 0)  # reports the hang-up only
        timed_out = False
        while True:
            left = spawns[-1]["limits"]["wall_s"] - (time.monotonic() - started)
            for pid, spawn in zip(pids, spawns, strict=True):
                left = min(left, spawn["limits"]["cpu_s"] - _cpu_seconds(pid))
            if left <= 0:
                timed_out = True
                break
            events = poll.poll(max(1.0, left * 1000))
            for fd, _ in events:
                if fd == _CONTROL_FD:
                    os._exit(0)  # the judge is gone; the PID namespace takes the tests along
            if events:
                break
        for pid, pidfd in zip(pids, pidfds, strict=True):
            if timed_out or pid != pids[-1]:
                os.kill(pid, 9)
            os.close(pidfd)
        return timed_out

    def _start(self, index: int, spawn: Spawn, fds: list[int]) -> int:
        steps = self._steps([fds[k] for k in spawn["fds"]], spawn["limits"])
        self.isolated[index] = 0
        pid = fork(self.isolation["namespaces"])
        if pid:
            return pid
        try:
            self._become(index, spawn, steps)
        finally:
            os._exit(1)

    def _steps(self, fds: list[int], limits: Limits) -> list[Step]:
        """What a child does before its role: its own descriptors only, then isolation."""
        high = range(_FIRST_FD, _FIRST_FD + len(fds))
        steps: list[Step] = [("dup2", os.dup2, pair) for pair in zip(fds, high, strict=True)]
        steps += [("dup2", os.dup2, (fd, fd - _FIRST_FD)) for fd in high]
        steps.append(("close", os.closerange, (len(fds), 1 << 20)))
        return steps + isolation_steps(self.isolation, limits, self.seccomp)

    def _become(self, index: int, spawn: Spawn, steps: list[Step]) -> None:
        """In the child: descriptors, isolation, role. Never returns normally."""
        take_steps(steps)
        self.isolated[index] = 1
        self.isolated.close()
        role, argument = spawn["role"], spawn["argument"]
        process = self.script if role in ("stdin", "checker") else self.solution
        os._exit(process.run(lambda: self._play(process, role, argument)))

    def _play(self, process: Process, role: str, argument: str | None) -> None:
        if role == "compile":
            return zygote_roles.compile_program(_all_of(0))
        if role == "checker":
            return zygote_roles.check(process, json.loads(_all_of(3)))
        if role == "asserts":
            return zygote_asserts.run_tests(process, _all_of(0).decode(), argument)
        code = marshal.loads(self.code)
        if role == "serve":
            return zygote_asserts.serve(process, code, argument)
        if role == "call":
            return zygote_roles.call(process, code, str(argument), _all_of(0))
        exec(code, process.globals)


def _all_of(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process, by its clock: (~pid << 3) | CPUCLOCK_SCHED."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # it has ended


def main(control: socket.socket) -> None:
    """Entry point of the bootstrap: the first message says how to isolate."""
    isolation: Any = json.loads(control.recv(_MAX_MESSAGE))
    os.dup2(control.fileno(), _CONTROL_FD)
    control.detach()  # descriptor 0 becomes the standard input
    Zygote(socket.socket(fileno=_CONTROL_FD), isolation).serve_requests()
