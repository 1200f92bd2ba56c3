"""Work for processes of stages, which import it by name."""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klear.configs.settings.base import Runtime, Settings
from klear.configs.settings.explain import ConfigError
from klear.eval.progress import report
from klear.tasks.engine.parts import computed_parts
from klear.tasks.engine.stage import Metrics, stage
from klear.tasks.store.store import Artifact, Store
from tests.cluster import parts_of_tests

Ask = Callable[..., object]


class How(Runtime):
    workers: int = 1


class Knobs(Settings):
    text: str = "hello"
    runtime: How = How()


def answer(ask: Ask, question: str) -> object:
    report(1, 2, "asking")
    logging.getLogger("klear").warning("%s was asked", question)
    return ask(question), os.getpid(), os.environ.get("OF_THIS_MOMENT")


def fail(_: Ask, way: str) -> None:
    if way == "exit":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConfigError(["sft.epochs: wrong", "sft.steps: wrong"])


def hang(_: Ask, names: Path, stubborn: bool = False) -> None:
    """Writes its id, and at its end that it cleaned up; `stubborn`: no signal but KILL ends it."""
    report(7, 40, "AC")
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        (names / str(os.getpid())).touch()
        while True:
            time.sleep(0.01)
    finally:
        (names / "cleaned").touch()


def wait_until_told(_: Ask, names: Path) -> str:
    (names / str(os.getpid())).touch()
    while not (names / "go").exists():
        time.sleep(0.01)
    return "done"


def log_beside_prefect(_: Ask) -> None:
    import prefect.main  # sets up logging

    logging.getLogger("klear").warning("still heard beside %s", prefect.__name__)


def hang_in_parts(_: Ask, names: Path) -> None:
    list(computed_parts(names.parent / "parts", [str(names)] * 4, parts_of_tests.hang, workers=2))


@stage(version=1)
def hangs(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    report(1, 7, "files moved")
    while True:
        time.sleep(0.01)


@stage(version=1)
def write_text(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    before = "".join(i.file("text.txt").read_text() for i in inputs)
    (out / "text.txt").write_text(before + settings.text)
    (out / "logs").mkdir(exist_ok=True)
    (out / "logs" / "time.txt").write_text(str(time.time_ns()))
    return {"length": len(before + settings.text)}


class SilentServer(Store):
    """Its server does not answer any more: at `method` nothing goes on."""

    is_shared = True

    def __init__(self, root: Path, method: str) -> None:
        super().__init__(root)
        self.method = method

    def hang(self, method: str) -> None:
        if method == self.method:
            hangs.body(self.root, settings=Knobs())

    def fetch(self, ref: Any) -> None:
        self.hang("fetch")

    def share(self, artifact: Artifact) -> Artifact:
        self.hang("share")
        return artifact

    def publish(self, work: Path, seal: Any = None, **fields: Any) -> Artifact:
        self.hang("publish")
        return super().publish(work, seal, **fields)
