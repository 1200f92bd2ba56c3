"""Code judging in a worker: one sandbox per process, which must prove itself before it judges: some
run programs unprotected inside containers without a word. The canary tries what a solution must not
do and prints what worked; this side looks whether anything happened."""

import os
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from ...configs.settings.judging import JudgeSettings
from ..records import Judgement, TestSuite
from ..sandbox import SandboxDied, SandboxUnavailable
from ..sandbox.sandbox import Sandbox
from ..sandbox.zygote.main import Limits
from .verify import judge_program

_ATTEMPTS = 3
_CANARY = """
import ctypes, os, socket
port, readable, writable, judge = input().split()
def attempt(name, action):
    try:
        action()
    except BaseException:
        return
    print(name)
def fork():
    if os.fork() == 0:
        os._exit(0)
def mount():
    if ctypes.CDLL(None).mount(b"none", b"/tmp", b"tmpfs", 0, None):
        raise OSError
attempt("reach the network", lambda: socket.create_connection(("127.0.0.1", int(port)), 1))
attempt("read a file outside", lambda: open(readable).read())
attempt("read /etc/passwd", lambda: open("/etc/passwd").read())
attempt("list a folder outside", lambda: os.listdir(os.path.dirname(readable)))
attempt("write a file outside", lambda: open(writable, "w").write("x"))
attempt("change a file outside", lambda: os.chmod(readable, 0o666))
attempt("start a process", fork)
attempt("run a program", lambda: os.posix_spawn("/bin/true", ["true"], {}))
attempt("mount a filesystem", mount)
print("done", flush=True)
attempt("signal the judge", lambda: os.kill(int(judge), 0))
attempt("signal every process", lambda: os.kill(-1, 0))
"""

_sandbox: Sandbox | None = None


def run(suite: TestSuite | None, program: str, settings: JudgeSettings) -> Judgement | None:
    """Judge one program; without a suite, only make sure that there is a sandbox. One that dies is
    replaced. Raises SandboxUnavailable, SandboxDied and TestsBroken."""
    global _sandbox
    for left in reversed(range(_ATTEMPTS)):
        try:
            if _sandbox is None or _sandbox.backend != settings.sandbox:
                discard()
                with ExitStack() as failing:
                    sandbox = failing.enter_context(Sandbox(settings.sandbox))
                    assert_isolated(sandbox)
                    failing.pop_all()
                _sandbox = sandbox
            return suite and judge_program(_sandbox, suite, program, settings)
        except SandboxDied:
            discard()
            if not left:
                raise
            time.sleep(0.1)
    return None


def discard() -> None:
    global _sandbox
    if _sandbox is not None:
        _sandbox.close()
    _sandbox = None


def assert_isolated(sandbox: Sandbox) -> None:
    """Raises SandboxUnavailable with what a program could do."""
    if sandbox.backend == "none":
        return
    limits = Limits(cpu_s=10, wall_s=30, memory=1 << 30, output=1 << 20)
    with tempfile.TemporaryDirectory(prefix="klear-canary-") as name, socket.socket() as listener:
        folder = Path(name)
        folder.chmod(0o777)
        readable, writable = folder / "readable", folder / "writable"
        readable.write_text("canary")
        readable.chmod(0o644)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        sandbox.compile(_CANARY.encode(), limits)
        outcome = sandbox.run(f"{port} {readable} {writable} {os.getpid()}".encode(), limits)
        done = outcome.stdout.decode("utf-8", "replace").split("\n")
        harm = [line for line in done if line not in ("", "done")]
        harm += ["write a file outside"] * writable.exists()
        problem = "a program could " + ", ".join(dict.fromkeys(harm)) if harm else ""
        if "done" not in done:
            problem = f"the canary did not run: {outcome.last_error_line or outcome.exit_code}"
        if problem:
            raise SandboxUnavailable(f"the sandbox does not isolate here: {problem}")


def check_sandbox(backend: str) -> tuple[str, int]:
    """`klear sandbox check`: what `backend` does here; 0 if it isolates, else 1."""
    started = time.monotonic()
    try:
        with Sandbox(backend) as sandbox:
            assert_isolated(sandbox)
    except (SandboxUnavailable, SandboxDied) as error:
        return f"judge.sandbox={backend} is refused: {' '.join(str(error).split())}", 1
    seconds = time.monotonic() - started
    return f"judge.sandbox={backend}: programs are isolated; self-test passed in {seconds:.1f} s", 0
