"""What a test process gives up before it runs untrusted code. Runs inside the sandbox.

Standard library only: the source is sent into the sandbox, where nothing else is installed.
Each step raises when the kernel refuses it; a step that fails must never be skipped, because the
judge takes a process that reaches the program for an isolated one.
"""

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from typing import Any, TypedDict

CLONE_NEWNS, CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID | MS_NODEV
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_THIS_THREAD = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()

libc = ctypes.PyDLL(None)  # PyDLL keeps the GIL, which fork needs
for _function in (libc.mount, libc.capset, libc.prctl, libc.setrlimit, libc.syscall):
    _function.restype = ctypes.c_long  # looked up once, before the first fork
libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)

_FORK_FLAGS = signal.SIGCHLD | CLONE_NEWPID | CLONE_NEWNS
_FORK = [_SYS_CLONE.get(os.uname().machine, -1), _FORK_FLAGS, 0, 0, 0, 0]
_fork_arguments = tuple(map(ctypes.c_long, _FORK))

Step = tuple[str, Callable[..., Any], tuple[Any, ...]]  # a name, a call, its arguments


class Limits(TypedDict):
    """CPU and wall seconds, bytes of address space, bytes of any file written."""

    cpu_s: float
    wall_s: float
    memory: int
    output: int


class Isolation(TypedDict):
    """How to isolate; told to the zygote when it starts. Without `namespaces` nothing is."""

    namespaces: bool
    uid: int | None
    seccomp: str
    """Hexadecimal BPF program; empty: no filter."""
    folder: str
    """Where the test may write. Without namespaces it is emptied after each test."""


class SeccompFilter(ctypes.Structure):
    """struct sock_fprog: the number of 8-byte instructions, and where they are."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seccomp_filter(program: bytes) -> SeccompFilter | None:
    """The filter that `isolate` loads; made once, before the first fork."""
    return SeccompFilter(len(program) // 8, program) if program else None


def checked(result: int, what: str) -> int:
    """`result` of a C function; raises OSError when it says that the kernel refused."""
    if result < 0:
        error = libc.__errno_location().contents.value
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def fork(namespaces: bool) -> int:
    """`os.fork`, in a new PID and mount namespace when `namespaces`.

    Without Python's fork hooks: they renew the locks that other threads may have held, and this
    process has one thread.
    """
    if not namespaces:
        return os.fork()
    return checked(libc.syscall(*_fork_arguments), "clone")


def isolation_steps(how: Isolation, limits: Limits, seccomp: SeccompFilter | None) -> list[Step]:
    """Give up everything a solution does not need, in the order the kernel demands.

    The calls are made ready before the fork, because a child copies every page that it touches.
    """
    steps: list[Step] = [("setsid", os.setsid, ())]  # kill(0, …) must not reach the group outside
    if how["namespaces"]:
        options = b"size=64m,nr_inodes=4k,mode=1777"
        target = how["folder"].encode()
        steps.append(("mount", libc.mount, (b"none", target, b"tmpfs", _MOUNT_FLAGS, options)))
    steps.append(("chdir", os.chdir, (how["folder"],)))
    steps += _limit(limits, how["namespaces"])
    uid = how["uid"]
    if uid is not None:
        steps.append(("setgroups", os.setgroups, ([],)))
        steps.append(("setresgid", os.setresgid, (uid, uid, uid)))
        steps.append(("setresuid", os.setresuid, (uid, uid, uid)))
    steps.append(("capset", libc.capset, (_THIS_THREAD, _NO_CAPABILITIES)))
    steps.append(("no_new_privs", libc.prctl, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    # Not every sandbox ends with the zygote. A change of user forgets this, so it comes after.
    steps.append(("die with parent", libc.prctl, (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)))
    if seccomp is not None:
        mode = (_PR_SET_SECCOMP, 2, ctypes.byref(seccomp), 0, 0)
        steps.append(("seccomp", libc.prctl, mode))
    return steps


def take_steps(steps: list[Step]) -> None:
    """Make every call, or raise OSError."""
    for name, call, arguments in steps:
        if call(*arguments) == -1:
            checked(-1, name)


def _limit(limits: Limits, own_user: bool) -> list[Step]:
    values = {
        # Hard CPU limit: SIGKILL, because process 1 of a PID namespace ignores SIGXCPU.
        resource.RLIMIT_CPU: int(limits["cpu_s"]) + 1,
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if own_user:  # the limit counts every process of the user
        values[resource.RLIMIT_NPROC] = 64
    pairs = {which: (ctypes.c_uint64 * 2)(value, value) for which, value in values.items()}
    return [("setrlimit", libc.setrlimit, (which, pair)) for which, pair in pairs.items()]
