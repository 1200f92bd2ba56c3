"""The system calls a solution may make: an allow-list, compiled by libseccomp to a BPF program.

What is not listed fails with ENOSYS: new processes, programs, sockets, signals to others, mounts,
namespaces, tracing, shared memory, io_uring, keys, and whatever a later kernel adds. libseccomp
knows the numbers of every architecture and closes the x32 back door.
"""

import contextlib
import ctypes
import errno
import signal
import tempfile
from functools import cache
from typing import Any

from eval.sandbox.errors import SandboxUnavailable

_CLONE_THREAD = 0x0001_0000
_AF_UNIX, _SOCK_STREAM, _SOCKET_TYPE_MASK = 1, 1, 0xF
_TERMINAL_AND_DESCRIPTOR_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)

# Duplicate, flags, locks, pipe size, seals. Not the owner and the signal of a descriptor
# (F_SETOWN, F_SETSIG, F_NOTIFY): with them the kernel sends signals that `kill` may not.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)

# No call changes modes, owners or times: Landlock does not restrict those, and a file outside may
# belong to the same user.
_ALLOWED = """
access alarm brk chdir clock_getres clock_gettime clock_nanosleep close close_range
copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2
epoll_wait eventfd eventfd2 exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir
fdatasync flock fstat fstatfs fsync ftruncate futex futex_waitv getcpu getcwd getdents getdents64
getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority
getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid
gettimeofday getuid link linkat lseek lstat madvise membarrier mincore mkdir mkdirat mmap mprotect
mremap msync munmap nanosleep newfstatat open openat openat2 pause pipe pipe2 poll ppoll pread64
preadv preadv2 prlimit64 pselect6 pwrite64 pwritev pwritev2 read readahead readlink readlinkat
readv recvfrom recvmsg rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction
rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sched_getaffinity
sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler sched_yield select
sendfile sendmsg sendto setitimer setrlimit set_robust_list setsockopt shutdown sigaltstack stat
statfs statx symlink symlinkat sync_file_range sysinfo time timer_create timer_delete
timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times
ugetrlimit umask uname unlink unlinkat wait4 waitid write writev
"""


@cache
def seccomp_program() -> bytes:
    """The BPF program, ready for `prctl(PR_SET_SECCOMP)`.

    Raises SandboxUnavailable when libseccomp is missing.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailable(
            f"libseccomp is not available ({error}): apt-get install libseccomp2"
        ) from error
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.ENOSYS))
    for name in _ALLOWED.split():
        if name != "prlimit64":
            _allow(pyseccomp, rules, name)
    with contextlib.suppress(
        OSError
    ):  # libseccomp < 2.5 has no binary tree; it loads 0.2 ms slower
        rules.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)
    # A signal to another process may reach it and go unnoticed here: end the sender instead.
    rules.add_rule(pyseccomp.KILL_PROCESS, "kill")
    equal = pyseccomp.EQ
    threads_only = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
    _allow(pyseccomp, rules, "clone", threads_only)
    _allow(pyseccomp, rules, "prlimit64", pyseccomp.Arg(0, equal, 0))  # this process only
    # asyncio needs a pair; one of datagrams could send to any address.
    stream = pyseccomp.Arg(1, pyseccomp.MASKED_EQ, _SOCKET_TYPE_MASK, _SOCK_STREAM)
    _allow(pyseccomp, rules, "socketpair", pyseccomp.Arg(0, equal, _AF_UNIX), stream)
    for command in _FCNTL_COMMANDS:
        _allow(pyseccomp, rules, "fcntl", pyseccomp.Arg(1, equal, command))
    for request in _TERMINAL_AND_DESCRIPTOR_IOCTLS:
        _allow(pyseccomp, rules, "ioctl", pyseccomp.Arg(1, equal, request))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow(pyseccomp: Any, rules: Any, name: str, *conditions: Any) -> None:
    try:
        rules.add_rule(pyseccomp.ALLOW, name, *conditions)
    except OSError:
        if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:
            raise  # a name that this architecture does not have needs no rule


def die_with_parent() -> None:
    """This process is killed when the process (the thread) that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
