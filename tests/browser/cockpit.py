"""One klear home with real servers, whose `tiny` profile takes a minute or two instead of nine."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from home import ROOT, SMALL, Home, eventually
from processes import below

PRODUCT = ("configs", "eval", "training", "tasks", "flows", "deployments")
# SFT is long enough to be met while it runs.
TINY = SMALL.replace("extends: tiny", "extends: ../../whole_tiny.yaml")
TINY = TINY.replace("sft: {epochs: 3", "sft: {epochs: 8")
SAVE_SECRET = """
import os, sys
from klear.configs.machine import load_machine
os.environ.update(load_machine().environment())
from prefect.blocks.system import Secret
Secret(value=sys.argv[2]).save(sys.argv[1], overwrite=True)
"""


class Cockpit(Home):
    """`klear up` of a copy of the product: its own home, ports and, in the copy, its own `tiny`."""

    def __init__(self, folder: Path, secrets: Mapping[str, str]) -> None:
        self.code = folder / "code" / "klear"
        super().__init__(folder, PYTHONPATH=str(self.code.parent), **secrets)
        for name in [n for n in self.environment if n.startswith("PREFECT_")]:
            del self.environment[name]
        for name in PRODUCT:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, self.code / name, ignore=ignore)
        shutil.copy(ROOT / "__init__.py", self.code)
        profiles = self.code / "configs" / "profiles"
        (profiles / "tiny.yaml").rename(self.code / "whole_tiny.yaml")
        (profiles / "tiny.yaml").write_text(TINY)

    def python(self, *arguments: str) -> str:
        """What a Python process of this home printed; it must have succeeded."""
        command, here = [sys.executable, "-P", *arguments], {"cwd": self.folder}
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, **here)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def klear(self, *words: str, **_: str) -> str:
        return self.python("-m", "klear.flows.cli.main", *words)

    def state(self, flow_run: str) -> str:
        """`Completed`, `Cancelled`, …"""
        return self.flow_run(flow_run)["state_name"]

    def meanwhile(self, flow_run: str, condition: Callable[[], object]) -> None:
        """Until the condition holds, which must be before the run ends."""
        eventually(lambda: condition() or self.has_ended(flow_run))
        assert condition(), f"{self.state(flow_run)} before that: {self.log(flow_run)}"

    def save_secret(self, block: str, value: str) -> None:
        """As a person does in the UI under Blocks."""
        self.python("-c", SAVE_SECRET, block, value)

    def tagged(self, tag: str, value: str) -> list[str]:
        """Ids of the MLflow runs with this tag."""
        return [r.info.run_id for r in self.tracked(f"tags.`{tag}` = '{value}'", "tiny")]

    def checkpoints(self, stage: str) -> set[Path]:
        """Those of unfinished work."""
        return set(self.store.glob(f".work/{stage}/*/.resume/checkpoints/checkpoint-*"))

    def processes_of_runs(self) -> list[psutil.Process]:
        """All that the worker has started and that lives: engine, supervisor, child."""
        return below(self.servers()["worker"])
