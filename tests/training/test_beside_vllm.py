"""What starts, watches and ends a stage's vLLM server, with a stand-in that answers as one would.

The real server is started in tests/training/test_own_vllm.py.
"""

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from configs.settings.engines import EngineRuntime
from configs.settings.training import RLSettings, TrainRuntime
from training.launch.jobs import RLJob, write_job
from training.launch.node import EXIT_WORKER_LOST
from training.vllm import sidecar

SERVER = """
import json, os, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
name, port, folder, how = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
(folder / "server.pid").write_text(str(os.getpid()))
token = os.environ["KLEAR_STAGE_VLLM_TOKEN"]
with (folder / "tokens").open("a") as drawn:
    drawn.write(token + "\\n")
(folder / "command").write_bytes(Path("/proc/self/cmdline").read_bytes())
print("loading", how, flush=True)
if how == "broken":
    raise SystemExit("no kernel for these heads")
if how == "slow":
    time.sleep(600)
if how == "with an engine":
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "engine.pid").write_text(str(engine.pid))
class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        text = json.dumps({"data": [{"id": name}]}).encode()
        self.send_response(200 if self.headers["Authorization"] == f"Bearer {token}" else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
HTTPServer.allow_reuse_address = False
server = HTTPServer(("127.0.0.1", port), Answers)
def end():
    while not (folder / "die").exists():
        time.sleep(0.02)
    print("the engine is dead", flush=True)
    os._exit(9)
threading.Thread(target=end, daemon=True).start()
server.serve_forever()
"""
NOTES = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "told").write_text(os.environ["KLEAR_STAGE_VLLM"])
Path(sys.argv[1], "token").write_text(os.environ["KLEAR_STAGE_VLLM_TOKEN"])
sys.exit(int(sys.argv[2]))
"""
KILLED = NOTES.replace("sys.exit(int(sys.argv[2]))", "os.kill(os.getpid(), 9)")
LOSES_ITS_SERVER = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1], "trainer.pid").write_text(str(os.getpid()))
Path(sys.argv[1], "die").touch()
if sys.argv[2] == "fails":
    sys.exit("ConnectionError: nobody answers")
time.sleep(600)
"""


@pytest.fixture
def job(tmp_path: Path) -> RLJob:
    settings = RLSettings(engine="vllm_server", runtime=TrainRuntime(bf16=False))
    made = RLJob(out=tmp_path, checkpoint=tmp_path, problems=tmp_path / "p", settings=settings)
    write_job(tmp_path / "job.json", made)
    return made


@pytest.fixture
def run(job, monkeypatch):
    """`run(code, word, how)`: the exit code with `python -c code FOLDER word` beside the server."""
    monkeypatch.setenv(sidecar.VISIBLE, "")

    def beside(code: str, word: str, how: str = "well", minutes: float = 10.0) -> int:
        def command(_: RLJob, name: str, host: str, port: int, *, cuda: bool) -> list[str]:
            assert (host, cuda) == ("127.0.0.1", False)
            return [sys.executable, "-c", SERVER, name, str(port), str(job.out), how]

        monkeypatch.setattr(sidecar, "serve_command", command)
        given = [str(job.out / "job.json"), "--minutes", str(minutes), "--"]
        return sidecar.main([*given, sys.executable, "-c", code, str(job.out), word])

    return beside


def gone(file: Path) -> bool:
    """Whether the process has ended; one whose parent died first may wait to be collected."""
    try:
        return psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("trainer", "code"), [(NOTES, 0), (NOTES, 7), (KILLED, 128 + signal.SIGKILL)]
)
def test_the_command_runs_beside_a_server_that_answers_and_its_end_is_the_end(
    run, job, trainer, code, monkeypatch
):
    monkeypatch.setattr(sidecar, "LAST_WORDS_S", 0.5)  # this server has none
    assert run(trainer, str(code)) == code
    assert (job.out / "told").read_text().startswith("http://127.0.0.1:2")
    assert gone(job.out / "server.pid")
    assert "loading well" in (job.out / "logs/vllm.log").read_text()


def test_every_start_has_a_token_of_its_own_that_no_command_line_and_no_log_shows(run, job, capfd):
    for _ in range(2):
        assert run(NOTES, "0") == 0
    drawn = (job.out / "tokens").read_text().split()
    assert len(set(drawn)) == 2
    assert (job.out / "token").read_text() == drawn[1]
    shown = [(job.out / "command").read_bytes().decode(), (job.out / "logs/vllm.log").read_text()]
    assert "-c" in shown[0]
    for token in drawn:
        assert len(token) == 43  # 256 bits, six to a letter
        assert not any(token in text for text in (*shown, *capfd.readouterr()))


def test_a_server_that_cannot_start_fails_with_the_end_of_its_log(run, job, capsys):
    assert run(NOTES, "0", "broken") == 1
    said = capsys.readouterr().err
    for words in ("exit code 1 before it answered", str(job.out / "logs/vllm.log"), "no kernel"):
        assert words in said
    assert not (job.out / "told").exists()


def test_a_server_that_never_answers_is_ended_in_time(run, job, capsys):
    assert run(NOTES, "0", "slow", minutes=0.05) == 1
    assert "did not answer in 0.05 minutes" in capsys.readouterr().err
    assert not (job.out / "told").exists()
    if (job.out / "server.pid").exists():
        assert gone(job.out / "server.pid")


@pytest.mark.parametrize("trainer", ["waits", "fails"])
def test_a_server_that_dies_in_the_middle_is_a_loss_and_ends_the_training(
    run, job, capsys, trainer
):
    assert run(LOSES_ITS_SERVER, trainer) == EXIT_WORKER_LOST
    said = capsys.readouterr().err
    assert "ended with exit code 9 in the middle" in said
    assert "the engine is dead" in said
    assert gone(job.out / "trainer.pid")


def test_an_engine_that_outlives_its_server_is_ended_with_it(run, job):
    assert run(LOSES_ITS_SERVER, "waits", "with an engine") == EXIT_WORKER_LOST
    assert gone(job.out / "server.pid")
    deadline = time.monotonic() + 30
    while not gone(job.out / "engine.pid"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_trainers_and_server_share_the_gpus_of_their_machine(job, monkeypatch):
    two = job.settings.model_copy(update={"engine_runtime": EngineRuntime(tensor_parallel=2)})
    pair = job.model_copy(update={"settings": two})
    monkeypatch.setenv(sidecar.VISIBLE, "4,5,6,7")
    name = sidecar.VISIBLE
    assert sidecar.shared_gpus(pair, 2) == ({name: "4,5"}, {name: "6,7"})
    with pytest.raises(sidecar.TooFewGPUs, match=r"3 GPUs train and .* needs 2 more .* are 4"):
        sidecar.shared_gpus(pair, 3)
    monkeypatch.setenv(name, "")
    assert sidecar.shared_gpus(pair, 2) == ({}, {})


def test_the_server_has_room_for_a_prompt_and_its_answer_and_takes_weights(job):
    command = sidecar.serve_command(job, "policy", "127.0.0.1", 20_001, cuda=False)
    after = dict(pairwise(command))
    assert after["--max-model-len"] == str(4_096 + 32_768)
    assert after["--dtype"] == "float32"
    assert after["--worker-extension-cls"] == "training.vllm.server.PolicyWeights"
    assert after["--middleware"] == "training.vllm.server.RequireToken"
    (job.checkpoint / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    command = sidecar.serve_command(job, "policy", "127.0.0.1", 20_001, cuda=True)
    after = dict(pairwise(command))
    assert after["--max-model-len"] == "512"
    assert json.loads(after["--weight-transfer-config"]) == {"backend": "nccl"}
    assert "--worker-extension-cls" not in command


def test_only_the_first_machine_of_a_step_has_the_server(job, monkeypatch):
    ran: list[list[str]] = []

    def become(_: str, command: list[str]) -> None:
        ran.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", become)
    monkeypatch.setenv("SLURM_NODEID", "1")
    with pytest.raises(SystemExit):
        sidecar.main([str(job.out / "job.json"), "--slurm", "--", "train", "--rank", "1"])
    assert ran == [["train", "--rank", "1"]]
