"""What a test process gives up before it runs untrusted code. Runs inside the sandbox.

Standard library only: the source is sent into the sandbox, where nothing else is installed.
Each step raises when the kernel refuses it; a step that fails must never be skipped, because the
judge takes a process that reaches the program for an isolated one.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
from typing import TypedDict

CLONE_NEWNS, CLONE_NEWPID = 0x0002_0000, 0x2000_0000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # same on every architecture
_MS_NOSUID, _MS_NODEV = 2, 4
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_READ = 1 << 2 | 1 << 3  # LANDLOCK_ACCESS_FS_READ_FILE | READ_DIR
_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15}  # how many filesystem rights each version knows

_THIS_THREAD = (ctypes.c_uint32 * 2)(0x2008_0522, 0)  # _LINUX_CAPABILITY_VERSION_3
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the GIL, which fork needs
for _function in (libc.mount, libc.capset, libc.prctl, libc.syscall):
    _function.restype = ctypes.c_long  # looked up once, before the first fork


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
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def fork(namespaces: bool) -> int:
    """`os.fork`, in a new PID and mount namespace when `namespaces`."""
    if not namespaces:
        return os.fork()
    flags = signal.SIGCHLD | CLONE_NEWPID | CLONE_NEWNS
    ctypes.pythonapi.PyOS_BeforeFork()
    number = _SYS_CLONE[platform.machine()]
    pid = libc.syscall(*map(ctypes.c_long, (number, flags, 0, 0, 0, 0)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return checked(pid, "clone")


def isolate(how: Isolation, limits: Limits, seccomp: SeccompFilter | None) -> None:
    """Give up everything a solution does not need, in the order the kernel demands."""
    os.setsid()  # kill(0, …) must not reach the process group outside
    if how["namespaces"]:
        options = b"size=64m,nr_inodes=4k,mode=1777"
        mounted = libc.mount(b"none", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
        checked(mounted, "mount /tmp")
        os.chdir("/tmp")
    else:
        os.chdir(how["scratch"])
    _limit(limits, threads=how["uid"] is not None or how["namespaces"])
    if how["landlock"] is not None:
        _restrict_files(how["landlock"], os.getcwd())
    _drop_privileges(how["uid"])
    if seccomp is not None:
        loaded = libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(seccomp), 0, 0)
        checked(loaded, "seccomp")


def _limit(limits: Limits, threads: bool) -> None:
    # Hard CPU limit: SIGKILL, because process 1 of a PID namespace ignores SIGXCPU.
    cpu = int(limits["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits["output"], limits["output"]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if threads:  # the limit counts every process of the user, so it needs a user of its own
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))


def _drop_privileges(uid: int | None) -> None:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    checked(libc.capset(_THIS_THREAD, _NO_CAPABILITIES), "capset")
    checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


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
    handled = ctypes.c_uint64(every_right)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    checked(ruleset, "landlock_create_ruleset")
    for path, rights in [*((path, _READ) for path in readable), (scratch, every_right & ~1)]:
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
