"""What a test process gives up before it runs untrusted code. Runs inside the sandbox.

Standard library only: the source is sent into the sandbox, where nothing else is installed.
Each step raises when the kernel refuses it; a step that fails must never be skipped, because the
judge takes a process that reaches the program for an isolated one.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable
from typing import Any, TypedDict

CLONE_NEWNS, CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # same on every architecture
_MOUNT_FLAGS = 2 | 4  # MS_NOSUID | MS_NODEV
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_WRITE = 1 << 1  # LANDLOCK_ACCESS_FS_WRITE_FILE
_READ = 1 << 2 | 1 << 3  # LANDLOCK_ACCESS_FS_READ_FILE | READ_DIR
_LANDLOCK_NET, _LANDLOCK_SCOPES = 3, 3  # bind and connect; abstract sockets and signals
_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # how many filesystem rights each version knows

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
    """How to isolate; chosen by the backend, told to the zygote when it starts."""

    namespaces: bool
    uid: int | None
    landlock: list[str] | None
    """Paths that stay readable; None: no Landlock."""
    seccomp: str
    """Hexadecimal BPF program; empty: no filter."""
    scratch: str
    """Without namespaces: the folder the test may write to, emptied after each test."""


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
    folder = how["scratch"]
    if how["namespaces"]:
        folder = "/tmp"
        options = b"size=64m,nr_inodes=4k,mode=1777"
        steps.append(("mount", libc.mount, (b"none", b"/tmp", b"tmpfs", _MOUNT_FLAGS, options)))
    steps.append(("chdir", os.chdir, (folder,)))
    steps += _limit(limits, threads=how["uid"] is not None or how["namespaces"])
    if how["landlock"] is not None:
        steps.append(("landlock", _restrict_files, (how["landlock"], folder)))
    uid = how["uid"]
    if uid is not None:
        steps.append(("setgroups", os.setgroups, ([],)))
        steps.append(("setresgid", os.setresgid, (uid, uid, uid)))
        steps.append(("setresuid", os.setresuid, (uid, uid, uid)))
    steps.append(("capset", libc.capset, (_THIS_THREAD, _NO_CAPABILITIES)))
    steps.append(("no_new_privs", libc.prctl, (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    # Not every sandbox ends with the zygote. A change of user forgets this, so it comes after.
    steps.append(("die with parent", libc.prctl, (_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)))
    if not how["namespaces"]:
        steps.append(("parent", _is_orphan, (os.getpid(),)))
    if seccomp is not None:
        mode = (_PR_SET_SECCOMP, 2, ctypes.byref(seccomp), 0, 0)
        steps.append(("seccomp", libc.prctl, mode))
    return steps


def take_steps(steps: list[Step]) -> None:
    """Make every call, or raise OSError."""
    for name, call, arguments in steps:
        if call(*arguments) == -1:
            checked(-1, name)


def _is_orphan(parent: int) -> int:
    return 0 if os.getppid() == parent else -1


def _limit(limits: Limits, threads: bool) -> list[Step]:
    values = {
        # Hard CPU limit: SIGKILL, because process 1 of a PID namespace ignores SIGXCPU.
        resource.RLIMIT_CPU: int(limits["cpu_s"]) + 1,
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["output"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if threads:  # the limit counts every process of the user, so it needs a user of its own
        values[resource.RLIMIT_NPROC] = 64
    pairs = {which: (ctypes.c_uint64 * 2)(value, value) for which, value in values.items()}
    return [("setrlimit", libc.setrlimit, (which, pair)) for which, pair in pairs.items()]


def landlock_version() -> int:
    """The kernel's Landlock version; 0 when there is none."""
    return max(0, libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))


def _restrict_files(readable: list[str], scratch: str) -> None:
    """Landlock: reading below `readable`, everything below `scratch`, nothing elsewhere."""

    class PathBeneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))

    version = checked(landlock_version() or -1, "landlock")
    every_right = (1 << _RIGHTS_OF_ABI[min(version, 4)]) - 1
    handled = (ctypes.c_uint64 * 3)(every_right, _LANDLOCK_NET, _LANDLOCK_SCOPES)
    known = 8 if version < 4 else 16 if version < 6 else 24  # bytes of it that the kernel knows
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(known), 0)
    checked(ruleset, "landlock_create_ruleset")
    rights_of = dict.fromkeys(readable, _READ) | {scratch: every_right & ~1}
    if "/dev/null" in rights_of:
        rights_of["/dev/null"] |= _WRITE
    for path, rights in rights_of.items():
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            if not os.path.isdir(path):
                rights &= ~(1 << 3)
            rule = PathBeneath(rights, fd)
            checked(libc.syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0), "landlock_add")
            os.close(fd)
    checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    checked(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)
