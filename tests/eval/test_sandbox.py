"""A program can only read its input and write its output. Each test is one thing it cannot do."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from processes import below, called, left

from eval.sandbox.errors import SandboxDied, SandboxUnavailable
from eval.sandbox.sandbox import Sandbox
from eval.sandbox.selftest import assert_isolated, check_sandbox
from eval.sandbox.zygote.isolation import Limits

LIMITS = Limits(cpu_s=2, wall_s=10, memory=1 << 30, output=1 << 20)


def output_of(sandbox: Sandbox, program: str, stdin: str = "") -> str:
    """What the program prints; what it raised in brackets."""
    assert sandbox.compile(program.encode(), LIMITS).exit_code == 0
    outcome = sandbox.run(stdin.encode(), LIMITS)
    text = outcome.stdout.decode("utf-8", "replace").strip()
    return text if outcome.exit_code == 0 else f"{text}[{outcome.last_error_line}]"


def test_the_network_is_out_of_reach(sandbox):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\nprint('in')"
        assert output_of(sandbox, program).startswith("[")
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_files_outside_are_out_of_reach(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o777)
    for path in (secret, "/etc/passwd", "/etc/hostname", "/proc/1/environ", "/proc/self/maps"):
        assert output_of(sandbox, f"print(open({str(path)!r}).read())").startswith("[")
    assert output_of(sandbox, "import os; open(os.__file__, 'a')").startswith("[")
    assert output_of(sandbox, f"open({str(tmp_path / 'new')!r}, 'w')").startswith("[")
    assert not (tmp_path / "new").exists()
    assert output_of(sandbox, f"import os; os.unlink({str(secret)!r})").startswith("[")
    assert secret.exists()


def test_no_process_can_be_started(sandbox):
    for program in (
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.posix_spawn('/bin/true', ['true'], {})",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import multiprocessing as m; p = m.Process(target=print); p.start(); p.join()",
    ):
        assert output_of(sandbox, program).startswith("["), program


def test_raw_system_calls_gain_nothing(sandbox):
    calls = {"socket": (41, 2, 1, 0), "ptrace": (101, 16, 1, 0), "process_vm_readv": (310, 1, 0, 0)}
    calls |= {"unshare": (272, 1 << 28, 0, 0), "io_uring_setup": (425, 8, 0, 0)}
    calls |= {"shmget": (29, 7, 4096, 0o1600)}
    others = {"mount": 165, "bpf": 321, "userfaultfd": 323, "keyctl": 250, "pidfd_open": 434}
    others |= {"perf_event_open": 298, "memfd_create": 319, "setns": 308, "fork": 57, "clone3": 435}
    calls |= {name: (number, 0, 0, 0) for name, number in others.items()}
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    program = (
        "import ctypes, json, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, call in json.loads(input()).items():\n"
        "    if libc.syscall(*call) >= 0 or ctypes.get_errno() != 38: print(name)\n"
    )
    assert output_of(sandbox, program, json.dumps(calls)) == ""


def test_a_signal_ends_its_sender(sandbox):
    for program in ("import os; os.kill(-1, 9)", "import os; os.kill(1, 0); print('sent')"):
        sandbox.compile(program.encode(), LIMITS)
        assert sandbox.run(b"", LIMITS).exit_code == -signal.SIGSYS


def test_limits_cannot_be_raised(sandbox):
    program = "import resource as r; r.setrlimit(r.RLIMIT_{}, (1 << 40, 1 << 40))"
    for name in ("AS", "CPU", "FSIZE", "NOFILE"):
        assert output_of(sandbox, program.format(name)).startswith("["), name


def test_nothing_is_left_for_the_next_test(sandbox):
    leave = "import os\nopen('left', 'w').write('x')\nos.makedirs('a/b')\nos.mkdir('c', 0)"
    assert output_of(sandbox, leave) == ""
    look = "import os\nprint(os.listdir('.'), os.path.exists('/dev/shm/left'))"
    assert output_of(sandbox, look) == "[] False"


def test_environment_and_descriptors_are_empty(sandbox, monkeypatch):
    monkeypatch.setenv("KLEAR_SECRET", "s3cret")
    assert "s3cret" not in output_of(sandbox, "import os; print(os.environ)")
    program = (
        "import os\n"
        "def is_open(fd):\n    try: return bool(os.fstat(fd))\n    except OSError: return False\n"
        "print([fd for fd in range(1024) if is_open(fd)])"
    )
    assert output_of(sandbox, program) == "[0, 1, 2]"


def test_threads_files_and_memory_are_bounded(sandbox):
    threads = (
        "import threading, time\nn = 0\n"
        "try:\n    while n < 3000:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nprint(n < 3000, flush=True)\nimport os; os._exit(0)"
    )
    assert output_of(sandbox, threads) == "True"
    files = "import os\ntry:\n    while True: os.dup(0)\nexcept OSError as e: print(e.errno)"
    assert output_of(sandbox, files) == "24"
    disk = "with open('big', 'wb') as f:\n    for _ in range(64): f.write(bytes(1 << 20))"
    assert "File too large" in output_of(sandbox, disk)
    memory = "try: bytearray(2 << 30)\nexcept MemoryError: print('no')"
    assert output_of(sandbox, memory) == "no"


def test_a_test_cannot_harm_the_next_one(sandbox):
    for program in (
        "import os; os._exit(0)",
        "import os; os.closerange(0, 64)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.abort()",
        "import signal; signal.raise_signal(19)",
        "import ctypes; ctypes.CDLL(None).kill(1, 9)",
        "import fcntl; fcntl.fcntl(1, 1033, 15)",
        "import builtins\nfor k in list(vars(builtins)): delattr(builtins, k)",
        "import sys; sys.modules.clear()",
    ):
        sandbox.compile(program.encode(), LIMITS)
        sandbox.run(b"", LIMITS)
        assert output_of(sandbox, "print(input())", "still here") == "still here", program


def test_a_sandbox_that_dies_says_so():
    before = set(below())
    with Sandbox("bubblewrap") as sandbox:
        inside = set(below()) - before
        for process in called("bwrap", inside):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        assert left(inside) == []
        with pytest.raises(SandboxDied):
            sandbox.run(b"", LIMITS)


def test_a_sandbox_that_does_not_isolate_is_refused():
    """Without isolation the canaries sing."""
    with Sandbox("none") as sandbox:
        sandbox.backend = "bubblewrap"
        with pytest.raises(SandboxUnavailable, match="a program could reach the network"):
            assert_isolated(sandbox)


def test_the_check_says_what_works_and_at_what_cost_or_how_to_repair_it(monkeypatch):
    text, status = check_sandbox("bubblewrap")
    assert (status, "ms a test" in text) == (0, True), text
    assert "every score says so" in check_sandbox("none")[0]
    monkeypatch.setenv("PATH", "/nonexistent")
    text, status = check_sandbox("bubblewrap")
    assert (status, "refused" in text, "apt-get install bubblewrap" in text) == (1, True, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_normal_user_gets_the_same_isolation():
    interpreter = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if not Path(interpreter).exists():
        pytest.skip("needs an interpreter that other users can run")
    source = Path(__file__).parents[2]
    if not os.access(source, os.R_OK) or source.stat().st_mode & 5 != 5:
        pytest.skip("other users cannot read the source")
    site = next(p for p in sys.path if p.endswith("site-packages"))
    code = (
        f"import sys; sys.path[:0] = [{str(source)!r}, {site!r}]\n"
        "from eval.sandbox.sandbox import Sandbox\n"
        "from eval.sandbox.selftest import assert_isolated\n"
        "with Sandbox('bubblewrap') as sandbox: assert_isolated(sandbox)\n"
        "print('isolated')"
    )
    done = subprocess.run(
        [interpreter, "-c", code],
        capture_output=True,
        text=True,
        user=12345,
        group=12345,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stdout == "isolated\n", done.stderr
