"""The interpreter inside the sandbox: it forks one isolated process for every test.

It starts once per worker, imports what programs use, and then answers requests on a SOCK_SEQPACKET
socket: one JSON message with descriptors in, one JSON message out. It never sees an expected
output, and it never runs or compiles untrusted code itself: both happen in processes it forks.

    {"op": "compile", ...}   compile the program in a process, keep the code   -> {"ended": [...]}
    {"op": "run", ...}       one or two processes that end together            -> {"ended": [...]}

What it reports about a process is the kernel's word: wait status, CPU time and peak memory.
"""

import array
import gc
import json
import marshal
import mmap
import os
import select
import socket
import sys
import threading
import time
import types
from typing import Any, TypedDict

from eval import zygote_asserts, zygote_roles
from eval.zygote_isolation import Isolation, Limits, fork, isolate, seccomp_filter
from eval.zygote_roles import Process

_MAX_MESSAGE = 1 << 17


class Spawn(TypedDict):
    """One process to fork. `fds` index the descriptors sent along, in the order 0, 1, 2, 3."""

    role: str
    argument: str | None
    fds: list[int]
    limits: Limits


class Ended(TypedDict):
    """The kernel's word on one process. `isolated` is false when isolation itself failed."""

    status: int
    timed_out: bool
    cpu_s: float
    wall_s: float
    peak_kb: int
    isolated: bool


class Zygote:
    def __init__(self, control: socket.socket, isolation: Isolation) -> None:
        self.control = control
        self.isolation = isolation
        self.names = zygote_roles.prelude()
        self.main = zygote_roles.module_named("__main__", self.names)
        self.solution = zygote_roles.module_named("solution", self.names)
        self.seccomp = seccomp_filter(bytes.fromhex(isolation["seccomp"]))
        self.code: types.CodeType | None = None
        self.isolated = mmap.mmap(-1, mmap.PAGESIZE)  # each child sets its byte, then unmaps it
        sys.setrecursionlimit(50_000)
        sys.set_int_max_str_digits(50_000)
        threading.stack_size(8 << 20)  # the main thread's limit is larger, threads' need not be
        gc.collect()
        gc.freeze()

    def serve_requests(self) -> None:
        """Until the judge's end of the socket closes."""
        self.control.send(b'{"ready": true}')
        while message := self.control.recvmsg(_MAX_MESSAGE, socket.CMSG_SPACE(16 * 4)):
            data, ancillary = message[0], message[1]
            if not data:
                return
            fds = array.array("i")
            for _, _, payload in ancillary:
                fds.frombytes(payload)
            request = json.loads(data)
            ended = self.run(request["processes"], list(fds))
            if request["op"] == "compile" and ended[0]["status"] == 0:
                with os.fdopen(os.dup(fds[3]), "rb") as compiled:
                    compiled.seek(0)
                    self.code = marshal.load(compiled)
            for fd in fds:
                os.close(fd)
            self.control.send(json.dumps({"ended": ended}).encode())

    def run(self, spawns: list[Spawn], fds: list[int]) -> list[Ended]:
        """Fork all processes, wait for the last of them, end the others."""
        if len(spawns) == 2:  # the program and its tests talk over a socket of their own
            pair = socket.socketpair()
            spawns[0]["fds"].append(len(fds))
            spawns[1]["fds"].append(len(fds) + 1)
            fds += [end.detach() for end in pair]
        started = time.monotonic()
        pids = [self._start(i, spawn, fds) for i, spawn in enumerate(spawns)]
        if len(spawns) == 2:
            os.close(fds.pop())
            os.close(fds.pop())
        timed_out = self._wait(pids, [spawn["limits"] for spawn in spawns], started)
        ended: list[Ended] = []
        for i, pid in enumerate(pids):
            _, status, usage = os.wait4(pid, 0)
            ended.append(
                Ended(
                    status=status,
                    timed_out=timed_out,
                    cpu_s=usage.ru_utime + usage.ru_stime,
                    wall_s=time.monotonic() - started,
                    peak_kb=usage.ru_maxrss,
                    isolated=self.isolated[i] == 1,
                )
            )
        if not self.isolation["namespaces"]:
            _empty(self.isolation["scratch"])
        return ended

    def _wait(self, pids: list[int], limits: list[Limits], started: float) -> bool:
        """Wait for the last process and kill the others; true when a time limit ended it."""
        pidfds = [os.pidfd_open(pid) for pid in pids]
        poll = select.poll()
        poll.register(pidfds[-1], select.POLLIN)
        poll.register(self.control, 0)  # reports the hang-up only
        timed_out = False
        while True:
            left = min(
                *(one["cpu_s"] - _cpu_seconds(pid) for pid, one in zip(pids, limits, strict=True)),
                limits[-1]["wall_s"] - (time.monotonic() - started),
            )
            if left <= 0:
                timed_out = True
                break
            events = poll.poll(max(1.0, left * 1000))
            if any(fd == self.control.fileno() for fd, _ in events):
                os._exit(0)  # the judge is gone; the PID namespace takes the tests along
            if events:
                break
        for pid, pidfd in zip(pids, pidfds, strict=True):
            if timed_out or pid != pids[-1]:
                os.kill(pid, 9)
            os.close(pidfd)
        return timed_out

    def _start(self, index: int, spawn: Spawn, fds: list[int]) -> int:
        self.isolated[index] = 0
        pid = fork(self.isolation["namespaces"])
        if pid:
            return pid
        try:
            self._become(index, spawn, fds)
        finally:
            os._exit(1)

    def _become(self, index: int, spawn: Spawn, fds: list[int]) -> None:
        """In the child: descriptors, isolation, role. Never returns normally."""
        high = [os.dup2(fds[k], 100 + i) for i, k in enumerate(spawn["fds"])]
        for i, fd in enumerate(high):
            os.dup2(fd, i)
        os.closerange(len(high), 1 << 20)
        isolate(self.isolation, spawn["limits"], self.seccomp)
        self.isolated[index] = 1
        self.isolated.close()
        role, argument = spawn["role"], spawn["argument"]
        is_script = role in ("stdin", "checker")
        process = Process(self.main if is_script else self.solution, self.names)
        process.run(lambda: self._play(process, role, argument))

    def _play(self, process: Process, role: str, argument: str | None) -> None:
        if role == "compile":
            return zygote_roles.compile_program(_all_of(0))
        if role == "checker":
            return zygote_roles.check(process, json.loads(_all_of(3)))
        if role == "asserts":
            return zygote_asserts.run_tests(process, _all_of(0).decode(), argument)
        assert self.code is not None
        if role == "serve":
            return zygote_asserts.serve(process, self.code, argument)
        if role == "call":
            return zygote_roles.call(process, self.code, str(argument), _all_of(0))
        exec(self.code, process.globals)


def _all_of(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _cpu_seconds(pid: int) -> float:
    """CPU time of another process, by its clock: (~pid << 3) | CPUCLOCK_SCHED."""
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0  # it has ended


def _empty(folder: str) -> None:
    import shutil  # not needed with namespaces, and every import makes forks dearer

    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            os.unlink(entry)


def main(control: socket.socket) -> None:
    """Entry point of the bootstrap: the first message says how to isolate."""
    isolation: Any = json.loads(control.recv(_MAX_MESSAGE))
    Zygote(control, isolation).serve_requests()
