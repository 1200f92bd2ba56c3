"""What keeps a solution in: bubblewrap's command line, and the system calls it may make: an
allow-list, compiled by libseccomp to a BPF program. What is not listed fails with ENOSYS: new
processes, programs, sockets, mounts, namespaces, tracing, shared memory, io_uring, keys, and
whatever a later kernel adds; `kill` ends the caller."""

import errno
import importlib.util
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from . import SandboxUnavailable

ENVIRONMENT = {
    **{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"},
    **{"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    **{"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    "LD_BIND_NOW": "1",  # or each child resolves the same symbols again
}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
PACKAGES = ("numpy", "scipy", "sympy", "mpmath", "networkx", "sortedcontainers")
"""What programs may import beside the standard library."""
_ZYGOTE = Path(__file__).with_name("zygote")
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
_CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL")

_CLONE_THREAD = 0x0001_0000
_AF_UNIX, _SOCK_STREAM, _SOCKET_TYPE_MASK = 1, 1, 0xF
_TERMINAL_AND_DESCRIPTOR_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Duplicate, flags, locks, pipe size, seals. Not the owner and the signal of a descriptor
# (F_SETOWN, F_SETSIG, F_NOTIFY): with them the kernel sends signals that `kill` may not.
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 9, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
# What the interpreter needs to isolate a test, beside `kill` and every `clone`.
_ISOLATING = ("capset", "mount", "pidfd_open", "prctl", "setgroups", "setresgid", "setresuid")
_ISOLATING += ("setsid",)
_ALLOWED = Path(__file__).with_name("system_calls.txt")
"""Allowed whatever their arguments; `seccomp_programs` allows some more with certain ones. No call
changes modes, owners or times: a file outside may belong to the same user."""


def package_folders() -> list[Path]:
    """What solutions may import beside the standard library, with the libraries it needs."""
    specs = filter(None, map(importlib.util.find_spec, PACKAGES))
    packages = [Path(spec.origin).parent for spec in specs if spec.origin]
    both = [folder for p in packages for folder in (p, p.with_name(f"{p.name}.libs"))]
    return [folder for folder in both if folder.is_dir()]


def bubblewrap(arguments: tuple[str, ...]) -> list[str]:
    """The command that runs this interpreter with `arguments` in an empty root. The interpreter is
    bound at a neutral path: it may live below a home that only its owner enters."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable("bubblewrap is not installed: apt-get install bubblewrap")
    command = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--unshare-pid"]
    command += ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        command += ["--unshare-user"]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    environment = ENVIRONMENT | {"PYTHONPATH": "/packages:/zygote"}
    prefix, executable = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    if not prefix.is_relative_to("/usr"):
        command += ["--ro-bind", str(prefix), "/python"]
        executable = Path("/python") / executable.relative_to(prefix)
        environment["LD_LIBRARY_PATH"] = "/python/lib"
    command += ["--perms", "0755", "--dir", "/packages"]
    for package in package_folders():
        command += ["--ro-bind", str(package), f"/packages/{package.name}"]
    command += ["--ro-bind", str(_ZYGOTE), "/zygote/klear/eval/sandbox/zygote"]
    command += ["--perms", "0755", "--dir", "/dev"]  # closed to other users otherwise
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--dir", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        command += ["--cap-add", f"CAP_{capability}"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    return [*command, "--", str(executable), *arguments]


@cache
def seccomp_programs() -> tuple[bytes, bytes]:
    """Two BPF programs, ready for `prctl(PR_SET_SECCOMP)`: of the interpreter and its children, and
    a short one for children, which takes away what only isolation needs."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise SandboxUnavailable(
            f"libseccomp is not available ({error}): apt-get install libseccomp2"
        ) from error
    refused = pyseccomp.ERRNO(errno.ENOSYS)
    rules, taken = pyseccomp.SyscallFilter(refused), pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    arg, equal, masked = pyseccomp.Arg, pyseccomp.EQ, pyseccomp.MASKED_EQ
    # A signal to another process may reach it and go unnoticed here: end the sender instead.
    taken.add_rule(pyseccomp.KILL_PROCESS, "kill")
    taken.add_rule(refused, "clone", arg(0, masked, _CLONE_THREAD, 0))
    for name in _ISOLATING:
        taken.add_rule(refused, name)
    conditional: list[tuple[Any, ...]] = [
        ("prlimit64", arg(0, equal, 0)),  # this process only
        # asyncio needs a pair; one of datagrams could send to any address
        ("socketpair", arg(0, equal, _AF_UNIX), arg(1, masked, _SOCKET_TYPE_MASK, _SOCK_STREAM)),
        *(("fcntl", arg(1, equal, command)) for command in _FCNTL_COMMANDS),
        *(("ioctl", arg(1, equal, request)) for request in _TERMINAL_AND_DESCRIPTOR_IOCTLS),
    ]
    names = (*_ALLOWED.read_text().split(), "kill", "clone", *_ISOLATING)
    for name, *conditions in [*((name,) for name in names), *conditional]:
        try:
            rules.add_rule(pyseccomp.ALLOW, name, *conditions)
        except OSError:
            if pyseccomp.resolve_syscall(pyseccomp.system_arch(), name) >= 0:
                raise  # a name that this architecture does not have needs no rule
    return _exported(rules), _exported(taken)


def _exported(rules: Any) -> bytes:
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
