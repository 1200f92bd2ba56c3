"""How the sandbox is started: one long-lived isolated interpreter per worker.

| backend | the interpreter | each test |
|---|---|---|
| bubblewrap | empty root, no network, own PIDs | PID and mount namespace, seccomp, rlimits |
| firejail | firejail's (root only) | the same |
| unprivileged | not isolated; needs no privilege | Landlock, seccomp, rlimits, a cleared folder |
| none | not isolated | rlimits, a cleared folder |

As root the tests also switch to a user id of the worker's own. The interpreter is bound at a
neutral path, because it may live below a home that only its owner can enter.
"""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from eval.sandbox_errors import SandboxUnavailable
from eval.sandbox_policy import seccomp_program
from eval.zygote_isolation import Isolation, landlock_version

# Before any import: `threading` and `random` would renew themselves in every forked child, which
# costs a third of a test and is for processes with threads.
_BOOTSTRAP = """
import os
os.register_at_fork = lambda **_: None
import json, socket, sys, types
control = socket.socket(fileno=0)
sys.modules["eval"] = types.ModuleType("eval")
for name, source in json.loads(control.recv(1 << 17)):
    module = types.ModuleType("eval." + name)
    sys.modules["eval." + name] = module
    setattr(sys.modules["eval"], name, module)
    exec(compile(source, name + ".py", "exec"), vars(module))
module.main(control)
"""
_FLAGS = ("-s", "-S", "-P", "-c", _BOOTSTRAP)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PACKAGES = ("numpy", "sortedcontainers")
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
_CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL")
_FIREJAIL = """
--quiet --noprofile --net=none --private --private-dev --private-tmp --nodbus --ipc-namespace
--caps.keep=sys_admin,setuid,setgid,setpcap,kill
"""


WITH_FOLDER = frozenset({"unprivileged", "none"})  # tests get a folder, not a tmpfs


@dataclass(frozen=True)
class Launch:
    """A command whose standard input is the control socket, and how its tests are isolated."""

    command: list[str]
    environment: dict[str, str]
    isolation: Isolation


def prepare(backend: str, folder: Path | None) -> Launch:
    """The command that starts `backend`; `folder` is private to this sandbox (WITH_FOLDER).

    Raises SandboxUnavailable with the fix when the machine lacks something.
    """
    if backend == "bubblewrap":
        return _bubblewrap()
    if backend == "firejail":
        return _firejail()
    assert folder is not None
    return _unprivileged(folder) if backend == "unprivileged" else _none(folder)


def _own_uid() -> int | None:
    """A user id for this worker's tests, so that no limit is shared with other workers."""
    return 61_000 + os.getpid() % 4_000 if os.geteuid() == 0 else None


def _environment(packages: str, library: str = "") -> dict[str, str]:
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
    environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"LD_BIND_NOW": "1"}  # or each child resolves the same symbols again
    environment["PYTHONPATH"] = packages
    return environment | ({"LD_LIBRARY_PATH": library} if library else {})


def _package_folders() -> list[Path]:
    """What solutions may import beside the standard library, with the libraries it needs."""
    found: list[Path] = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).parent
            found += [f for f in (package, package.with_name(f"{name}.libs")) if f.is_dir()]
    return found


def _bubblewrap() -> Launch:
    bwrap = _require("bwrap", "bubblewrap")
    command = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--unshare-pid"]
    command += ["--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() != 0:
        command += ["--unshare-user"]
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            command += ["--ro-bind", str(path), str(path)]
    prefix, executable = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    library = ""
    if not prefix.is_relative_to("/usr"):
        command += ["--ro-bind", str(prefix), "/python"]
        executable = Path("/python") / executable.relative_to(prefix)
        library = "/python/lib"
    command += ["--perms", "0755", "--dir", "/packages"]
    for package in _package_folders():
        command += ["--ro-bind", str(package), f"/packages/{package.name}"]
    command += ["--perms", "0755", "--dir", "/dev"]  # closed to other users otherwise
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--dir", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        command += ["--cap-add", f"CAP_{capability}"]
    for name, value in _environment("/packages", library).items():
        command += ["--setenv", name, value]
    isolation = Isolation(
        namespaces=True, uid=_own_uid(), landlock=None, seccomp=seccomp_program().hex(), scratch=""
    )
    return Launch([*command, "--", str(executable), *_FLAGS], {}, isolation)


def _firejail() -> Launch:
    firejail = _require("firejail", "firejail")
    if os.geteuid() != 0:
        raise SandboxUnavailable(
            "firejail keeps no capabilities for a normal user: run as root, "
            "or choose judge.sandbox=bubblewrap or unprivileged"
        )
    executable = _public_interpreter(outside=("/root", "/home", "/tmp"))
    readable = [*_SYSTEM, *_DEVICES, str(Path(executable).parents[1])]
    isolation = Isolation(
        namespaces=True,
        uid=_own_uid(),
        landlock=_existing(readable) if landlock_version() else None,
        seccomp=seccomp_program().hex(),
        scratch="",
    )
    command = [firejail, *_FIREJAIL.split(), "--", executable, *_FLAGS]
    return Launch(command, _environment(""), isolation)


def _unprivileged(folder: Path) -> Launch:
    if landlock_version() == 0:
        raise SandboxUnavailable(
            "this kernel has no Landlock (Linux 5.13 or later, listed in the boot option lsm=): "
            "choose judge.sandbox=bubblewrap"
        )
    uid = _own_uid()
    executable = sys.executable if uid is None else _public_interpreter()
    scratch, packages, places = _folders(folder, uid)
    prefix = str(Path(executable).resolve().parents[1])
    readable = [*_SYSTEM, prefix, str(packages), *places, *_DEVICES, "/etc/ld.so.cache"]
    isolation = Isolation(
        namespaces=False,
        uid=uid,
        landlock=_existing(readable),
        seccomp=seccomp_program().hex(),
        scratch=str(scratch),
    )
    real = str(Path(executable).resolve())
    return Launch([real, *_FLAGS], _environment(str(packages)), isolation)


def _none(folder: Path) -> Launch:
    scratch, packages, _ = _folders(folder, None)
    isolation = Isolation(
        namespaces=False, uid=None, landlock=None, seccomp="", scratch=str(scratch)
    )
    real = str(Path(sys.executable).resolve())
    return Launch([real, *_FLAGS], _environment(str(packages)), isolation)


def _existing(paths: list[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]


def _folders(folder: Path, uid: int | None) -> tuple[Path, Path, list[str]]:
    """A writable scratch folder of `uid`, a path with the packages only, their real places."""
    folder.chmod(0o711)
    scratch, packages = folder / "scratch", folder / "packages"
    for created in (scratch, packages):
        created.mkdir()
    if uid is not None:
        os.chown(scratch, uid, uid)
    places = _package_folders()
    for package in places:
        (packages / package.name).symlink_to(package)
    return scratch, packages, list(map(str, places))


def _public_interpreter(outside: tuple[str, ...] = ()) -> str:
    """A Python that an unprivileged user can run; ours may live below a closed home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    ours = Path(sys.executable).resolve()
    for candidate in (
        ours,
        Path(f"/usr/local/bin/python{version}"),
        Path(f"/usr/bin/python{version}"),
    ):
        hidden = any(candidate.is_relative_to(folder) for folder in outside)
        if not hidden and candidate.is_file() and _is_public(candidate.resolve()):
            return str(candidate.resolve())
    raise SandboxUnavailable(
        f"the interpreter {ours} is below a folder that other users cannot enter: "
        f"apt-get install python{version}, or choose judge.sandbox=bubblewrap"
    )


def _is_public(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _require(program: str, package: str) -> str:
    """The path of `program`, which runs without our environment."""
    path = shutil.which(program)
    if path is None:
        raise SandboxUnavailable(
            f"{package} is not installed: apt-get install {package}, "
            "or choose judge.sandbox=unprivileged"
        )
    return path


def explain_failure(backend: str, errors: bytes) -> str:
    """One line for a sandbox that did not start, from what it wrote to standard error."""
    last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
    return (
        f"{backend} cannot isolate on this machine ({last or 'it ended without a message'}): "
        "allow user namespaces (in a container: --privileged or --cap-add=SYS_ADMIN), "
        "or choose judge.sandbox=unprivileged"
    )


def start(launch: Launch, control_fd: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        launch.command,
        env=launch.environment,
        cwd="/",  # firejail tells programs where it was started
        stdin=control_fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
