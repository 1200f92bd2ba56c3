"""SIGKILL of a `vllm serve` that a stage asks, at moments drawn from a seed (`make chaos`).

The stage is asked once undisturbed. Then, in a fresh store, the server, its engine or both are
killed in the middle. Half of the times it is started again at once, and the stage waits for it; in
the others only when the stage has given up, in one line that names the endpoint, and the same
command follows. In the end every request has been answered once, with the undisturbed answer.

As a program it is that stage: `python served.py PROBLEMS STORE URL N`. N is how often a request is
tried again, which changes how long the stage waits and no result.
"""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vllm_server import VLLMServer, tiny_teacher

from klear.configs.settings.data import SampleSettings
from klear.configs.settings.engines import EngineRuntime, EngineSettings, Sampling
from klear.eval.families import countdown
from klear.eval.records import Problem, Sample
from klear.eval.records.tables import read_table, write_table
from klear.tasks.answers.distill import distill
from klear.tasks.engine.run import Run, active
from klear.tasks.store.store import Artifact, Store
from klear.training.engines.interface import EngineError

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4
PROBLEMS, SAMPLES, TOKENS = 40, 3, 48
REQUESTS = PROBLEMS * SAMPLES
PATIENT, IMPATIENT = 240, 2  # attempts after the first: about half an hour, and seconds
PATIENCE_S = 1_800.0
VICTIMS = ("server", "engine", "all")


class Blow(NamedTuple):
    """One SIGKILL, when `share` of the answers are there."""

    victim: str
    share: float
    late: bool
    """The server is started again only when the stage has given up."""


@dataclass
class Found:
    """What happened, and what did not hold."""

    killed: list[str] = field(default_factory=list)
    starts: int = 0
    """Of the stage."""
    broken: list[str] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    """Answers on file after each kill."""
    missed: list[str] = field(default_factory=list)
    """Who was not killed, for the stage was over before its moment."""


def draw(chance: random.Random, kills: int) -> list[Blow]:
    """In the order of their moments; every victim in turn, waited for and given up in turn."""
    shares = sorted(chance.uniform(0.05, 0.9) for _ in range(kills))
    return [Blow(VICTIMS[i % len(VICTIMS)], share, i % 2 == 0) for i, share in enumerate(shares)]


class Asking:
    """The stage as a process, which may be started several times on one store."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        self.store, self.log, self.url = folder / name, folder / f"{name}.log", url
        self._problems = folder / "problems"
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self, retries: int) -> None:
        words = [self._problems, self.store, self.url, retries]
        paths = os.pathsep.join((str(ROOT / ".package"), str(ROOT / "tests")))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": paths, "NO_PROXY": "127.0.0.1",
                     "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.starts += 1

    def answered(self) -> int:
        """Whole lines of the journal, while the stage is under way."""
        files = self.store.glob(".work/distill/*/.resume/**/*.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace").strip()[-2000:]

    def result(self) -> tuple[str, list[Sample]]:
        """The digest and the samples that it published."""
        (folder,) = self.store.glob("distill/*")
        digest = json.loads((folder / "manifest.json").read_text())["digest"]
        return digest, list(read_table(folder / "samples.parquet", Sample))


def strike(blow: Blow, server: VLLMServer, asking: Asking, findings: Found) -> None:
    """Wait for the moment, kill, look around, and start again what has to be."""
    if blow.late or not asking.is_running:
        asking.end()  # the same command, with another patience
        asking.start(IMPATIENT if blow.late else PATIENT)
    deadline = time.monotonic() + PATIENCE_S
    while asking.is_running and asking.answered() < blow.share * REQUESTS:
        assert time.monotonic() < deadline, asking.said()
        time.sleep(0.02)
    before = asking.answered()
    if not asking.is_running:
        findings.missed.append(blow.victim)
        return
    tree = server.kill(blow.victim)
    findings.killed.append(blow.victim)
    server.mark_crashed(tree)
    if blow.late:  # the stage ends by itself, with one line that helps
        code, output = asking.wait(), asking.said()
        wanted = (asking.url, "finished answers are kept")
        if code != 1 or "\n" in output or not all(word in output for word in wanted):
            findings.broken.append(f"the stage gave up with exit code {code} and said: {output}")
    server.start()
    server.wait()
    if asking.is_running and asking.answered() < before:
        findings.broken.append(f"{before} answers were on file, {asking.answered()} are left")
    findings.kept.append(before)
    outcome = "given up" if blow.late else "waited for"
    print(f"{blow.victim:7} after {before} of {REQUESTS} answers, {outcome}", flush=True)


def run(folder: Path, blows: list[Blow]) -> Found:
    """Kill a server of its own by a schedule, all in an empty folder."""
    (folder / "problems").mkdir()
    rows = countdown.generate(random.Random(0), PROBLEMS, "train")
    write_table(folder / "problems" / "kept.parquet", Problem, rows)
    findings = Found()
    with VLLMServer(tiny_teacher(folder), folder / "vllm.log") as server:
        unharmed, asking = (Asking(folder, name, server.url) for name in ("whole", "struck"))
        try:
            unharmed.start(PATIENT)
            assert unharmed.wait() == 0, unharmed.said()
            for blow in blows:
                strike(blow, server, asking, findings)
            if not asking.is_running:
                asking.start(PATIENT)
            if asking.wait():
                findings.broken.append(f"the stage did not end well: {asking.said()}")
            elif asking.result() != unharmed.result():
                findings.broken.append("digest or answers are not the undisturbed ones")
            elif len({(s.problem_id, s.index) for s in asking.result()[1]}) != REQUESTS:
                findings.broken.append("not every request has one answer")
        finally:
            asking.end()
            unharmed.end()
    findings.starts = asking.starts
    return findings


def ask(problems: str, store: str, url: str, retries: str) -> int:
    """The stage. Exit code 1 and one line when the endpoint failed."""
    engine = EngineSettings(
        kind="openai", model="tiny-teacher", base_url=url, api_key_env="",
        runtime=EngineRuntime(concurrency=4, max_retries=int(retries)),
    )  # fmt: skip
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=TOKENS)
    settings = SampleSettings(samples_per_prompt=SAMPLES, engine=engine, sampling=sampling)
    with active(Run(store=Store(Path(store)))):
        try:
            distill(Artifact.of_folder(Path(problems)), settings=settings)
        except EngineError as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(ask(*sys.argv[1:]))
