"""Run untrusted programs: one sandbox, one interpreter in it, one isolated process per test.

`Sandbox` lives in a trusted worker and owns everything that decides a verdict. Programs get their
input in a memory file and write their output to another; what is known about them afterwards is
those bytes and the kernel's word (wait status, CPU time, peak memory).

| backend | the interpreter | each test |
|---|---|---|
| bubblewrap | empty root, no network, own PIDs | PID and mount namespace, seccomp, rlimits |
| none | not isolated | rlimits, a cleared folder |

As root the tests also switch to a user id of the worker's own. The interpreter is bound at a
neutral path, because it may live below a home that only its owner can enter.
"""

import contextlib
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from eval.sandbox.errors import SandboxDied, SandboxUnavailable
from eval.sandbox.system_calls import seccomp_program
from eval.sandbox.zygote.isolation import Isolation, Limits
from eval.sandbox.zygote.main import Ended, Spawn

_ZYGOTE = ("isolation", "values", "roles", "asserts", "main")  # in import order
_START_S, _GRACE_S, _DYING_S = 20.0, 10.0, 1.0
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what it started
_STACK_BYTES = 512 << 20
_STDERR_TAIL = 2000

# Before any import: `threading` and `random` would renew themselves in every forked child, which
# costs a third of a test and is for processes with threads.
_BOOTSTRAP = """
import os
os.register_at_fork = lambda **_: None
import json, socket, sys, types
control = socket.socket(fileno=0)
package = types.ModuleType("eval.sandbox.zygote")
sys.modules["eval"] = types.ModuleType("eval")
sys.modules["eval.sandbox"] = types.ModuleType("eval.sandbox")
sys.modules[package.__name__] = package
for name, source in json.loads(control.recv(1 << 17)):
    module = types.ModuleType(package.__name__ + "." + name)
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(source, name + ".py", "exec"), vars(module))
module.main(control)
"""
_FLAGS = ("-s", "-S", "-P", "-c", _BOOTSTRAP)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PACKAGES = ("numpy", "sortedcontainers")
_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")
_CAPABILITIES = ("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP", "KILL")
_ENVIRONMENT = {
    **{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"},
    **{"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
    **{"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    "LD_BIND_NOW": "1",  # or each child resolves the same symbols again
}


@dataclass(frozen=True)
class Outcome:
    """One process that has ended. Outputs are untrusted bytes."""

    status: int
    """Wait status, as `os.waitstatus_to_exitcode` reads it."""
    timed_out: bool
    cpu_s: float
    wall_s: float
    peak_kb: int
    stdout: bytes = b""
    stderr: bytes = b""
    result: bytes = b""

    @property
    def exit_code(self) -> int:
        """0 to 255, or minus the signal that killed the process."""
        return os.waitstatus_to_exitcode(self.status)

    @property
    def last_error_line(self) -> str:
        lines = self.stderr[-_STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class Sandbox:
    """One sandboxed interpreter; a context manager. Not thread-safe.

    Raises SandboxUnavailable when it cannot start, SandboxDied when it stops answering.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the interpreter. Raises SandboxDied when it is killed meanwhile."""
        if self.backend == "bubblewrap":
            uid = 61_000 + os.getpid() % 4_000 if os.geteuid() == 0 else None
            how = Isolation(
                namespaces=True, uid=uid, seccomp=seccomp_program().hex(), folder="/tmp"
            )
            command, environment = _bubblewrap(), {}
        else:
            self._folder = tempfile.TemporaryDirectory(
                prefix="klear-sandbox-", ignore_cleanup_errors=True
            )
            how = Isolation(namespaces=False, uid=None, seccomp="", folder=self._folder.name)
            command = [str(Path(sys.executable).resolve()), *_FLAGS]
            site = dict.fromkeys(str(package.parent) for package in _package_folders())
            environment = _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(site)}
        with contextlib.suppress(ValueError, OSError):  # deep recursion in C needs stack
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, hard))
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        zygote = Path(__file__).parent / "zygote"
        sources = [(name, (zygote / f"{name}.py").read_text()) for name in _ZYGOTE]
        try:
            self._control.send(json.dumps(sources).encode())
            self._control.send(json.dumps(how).encode())
            self._receive(_START_S)
        except (SandboxDied, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_DYING_S)
            status = self._process.poll()
            self._process.kill()
            errors = self._process.communicate()[1]
            self.close()
            if status in _KILLED:
                raise SandboxDied("while it started") from None
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            raise SandboxUnavailable(
                f"{self.backend} cannot isolate on this machine "
                f"({last or 'it ended without a message'}): allow user namespaces (in a container: "
                "--privileged or --cap-add=SYS_ADMIN)"
            ) from None

    def close(self) -> None:
        """End the interpreter and everything in it."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._control = self._process = self._folder = None

    def compile(self, program: bytes, limits: Limits) -> Outcome:
        """Compile and keep `program`; the next runs are of it. A failure is a compile error."""
        return self._run([("compile", None, program, b"")], limits)[0]

    def run(self, stdin: bytes, limits: Limits) -> Outcome:
        """Run the program on `stdin`."""
        return self._run([("stdin", None, stdin)], limits)[0]

    def call(self, function: str, arguments: bytes, limits: Limits) -> Outcome:
        """Call `function` with a JSON list of arguments, or {"args", "names"} where the last ones
        have names; `result` is the JSON it returned."""
        return self._run([("call", function, arguments, b"")], limits)[0]

    def asserts(self, tests: str, function: str | None, limits: Limits) -> tuple[Outcome, Outcome]:
        """The outcomes of the program and of the tests, which run in a process of their own."""
        processes = [("serve", function, b""), ("asserts", function, tests.encode())]
        program, verdict = self._run(processes, limits)
        return program, verdict

    def check(self, checker: str, files: dict[str, bytes], limits: Limits) -> Outcome:
        """Run a trusted checker on `files`: their names are argv[1:], the second is its stdin."""
        texts = {name: data.decode("utf-8", "surrogateescape") for name, data in files.items()}
        request = json.dumps({"checker": checker, "files": texts}).encode()
        return self._run([("checker", None, list(files.values())[1], request)], limits)[0]

    def _run(self, processes: list[tuple[Any, ...]], limits: Limits) -> list[Outcome]:
        """Each process: its role, argument, standard input, and what the role reads on descriptor 3
        (b"": it writes a result there)."""
        fds: list[int] = []
        spawns: list[Spawn] = []
        for role, argument, stdin, *extra in processes:
            mine = [_memory_file(stdin), _memory_file(), _memory_file(), *map(_memory_file, extra)]
            indices = list(range(len(fds), len(fds) + len(mine)))
            spawns.append(Spawn(role=role, argument=argument, fds=indices, limits=limits))
            fds += mine
        try:
            if self._control is None:
                raise SandboxDied("the sandbox is closed")
            try:
                socket.send_fds(self._control, [json.dumps(spawns).encode()], fds)
            except OSError as error:
                raise SandboxDied(f"the sandbox is gone: {error}") from error
            reply = self._receive(limits["wall_s"] + _GRACE_S)
            return [
                _outcome(Ended(*ended), [fds[k] for k in spawn["fds"]])
                for ended, spawn in zip(reply, spawns, strict=True)
            ]
        finally:
            for fd in fds:
                os.close(fd)

    def _receive(self, timeout_s: float) -> Any:
        assert self._control is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise SandboxDied(f"the sandbox did not answer in {timeout_s:.0f} s")
        try:
            data = self._control.recv(1 << 17)
        except OSError as error:
            raise SandboxDied(f"the sandbox is gone: {error}") from error
        if not data:
            raise SandboxDied("the sandbox ended")
        return json.loads(data)


def _package_folders() -> list[Path]:
    """What solutions may import beside the standard library, with the libraries it needs."""
    found: list[Path] = []
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            package = Path(spec.origin).parent
            found += [f for f in (package, package.with_name(f"{name}.libs")) if f.is_dir()]
    return found


def _bubblewrap() -> list[str]:
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
    environment = _ENVIRONMENT | {"PYTHONPATH": "/packages"}
    prefix, executable = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
    if not prefix.is_relative_to("/usr"):
        command += ["--ro-bind", str(prefix), "/python"]
        executable = Path("/python") / executable.relative_to(prefix)
        environment["LD_LIBRARY_PATH"] = "/python/lib"
    command += ["--perms", "0755", "--dir", "/packages"]
    for package in _package_folders():
        command += ["--ro-bind", str(package), f"/packages/{package.name}"]
    command += ["--perms", "0755", "--dir", "/dev"]  # closed to other users otherwise
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--dir", "/tmp", "--remount-ro", "/", "--chdir", "/tmp", "--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        command += ["--cap-add", f"CAP_{capability}"]
    for name, value in environment.items():
        command += ["--setenv", name, value]
    return [*command, "--", str(executable), *_FLAGS]


def _memory_file(data: bytes = b"") -> int:
    fd = os.memfd_create("klear", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _outcome(ended: Ended, fds: list[int]) -> Outcome:
    if not ended.isolated:
        message = os.pread(fds[2], _STDERR_TAIL, 0).decode("utf-8", "replace").strip()
        raise SandboxDied(f"a test could not be isolated: {message[-300:]}")
    contents = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds[1:]]
    stdout, stderr, result = (*contents, b"")[:3]
    return Outcome(*ended[:5], stdout, stderr, result)
