"""Two stages of one file, for the tests of what becomes of results."""

from pathlib import Path

from klear.configs.settings.base import Settings
from klear.tasks.stage.stage import Metrics, stage
from klear.tasks.store.store import Artifact


class Knobs(Settings):
    text: str = "rows"


@stage(version=1)
def collect(out: Path, *, settings: Knobs) -> Metrics:
    (out / "rows.jsonl").write_text(settings.text)
    return {}


@stage(version=1)
def report(out: Path, *inputs: Artifact, settings: Knobs) -> Metrics:
    rows = "".join(i.file("rows.jsonl").read_text() for i in inputs)
    (out / "rows.jsonl").write_text(rows)
    return {}
