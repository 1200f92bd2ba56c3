"""Parts: a killed dedup resumes at them, and neither their size nor the workers show."""

import random
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from configs.settings.data import DedupSettings, PartsRuntime
from eval.records import Problem
from eval.tables import write_table
from tasks.data import prompt_parts
from tasks.data.dedup import dedup
from tasks.data.near_duplicates import Banding
from tasks.data.split_rows import table_parts
from tasks.data.text_columns import fold
from tasks.data.words import query_words
from tasks.store.store import SCRATCH, Artifact, content_digest, scan

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300
ROWS_PER_PART = 40
KILLED_IN_THE_THIRD_PART = """
import os, signal, sys
from pathlib import Path
from configs.settings.data import DedupSettings
from tasks.data import prompt_parts
from tasks.data.dedup import dedup
from tasks.store.store import Artifact

def dies(part, folder, **how):
    computed(part, folder, **how)
    if folder.name.startswith("00002"):
        os.kill(os.getpid(), signal.SIGKILL)

computed, prompt_parts.compute_part = prompt_parts.compute_part, dies
settings = DedupSettings.model_validate_json(sys.argv[3])
dedup.body(Path(sys.argv[2]), Artifact.of_folder(Path(sys.argv[1])), settings=settings)
"""


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """A table in row groups of 20 rows with repeats, near-repeats and an id used twice."""
    folder = tmp_path_factory.mktemp("problems")
    chance = random.Random(0)
    prompts: list[str] = []
    for number in range(ROWS):
        if number % 5 == 4:
            prompts.append(chance.choice(prompts).upper() + chance.choice(["", " é more"]))
        else:
            prompts.append(" ".join(f"w{chance.randrange(500)}" for _ in range(40)))
    rows = [
        Problem(domain="math", prompt=p, answer="1", source=chance.choice("ab")) for p in prompts
    ]
    rows[-1] = rows[-1].model_copy(update={"id": rows[0].id})
    write_table(folder / "kept.parquet", Problem, rows)
    table = pq.read_table(folder / "kept.parquet")
    pq.write_table(table, folder / "kept.parquet", row_group_size=20)
    return folder


def settings(rows: int, workers: int = 1) -> DedupSettings:
    return DedupSettings(near=True, runtime=PartsRuntime(rows_per_part=rows, workers=workers))


def run(problems: Path, out: Path, chosen: DedupSettings) -> tuple[str, dict[str, float]]:
    """The digest of what is published, and the metrics."""
    out.mkdir(exist_ok=True)
    metrics = dedup.body(out, Artifact.of_folder(problems), settings=chosen)
    return content_digest(scan(out)), dict(metrics)


@pytest.mark.parametrize(("rows", "workers"), [(1, 1), (ROWS_PER_PART, 1), (90, 2)])
def test_results_depend_on_neither_the_part_size_nor_the_workers(
    tmp_path: Path, problems: Path, rows: int, workers: int
):
    whole = run(problems, tmp_path / "whole", settings(10**6))
    assert run(problems, tmp_path / "parts", settings(rows, workers)) == whole
    found = whole[1]
    assert min(found["rejected_exact"], found["rejected_near"], found["rejected_id"]) >= 1.0


def test_a_table_is_cut_at_row_groups(problems: Path):
    cut = table_parts(problems / "kept.parquet", ROWS_PER_PART + 1)
    assert cut == [(i, i + 3, 20 * i) for i in range(0, 15, 3)]


def test_a_dedup_killed_in_its_third_part_resumes_there_with_the_same_digest(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
):
    chosen, out = settings(ROWS_PER_PART), tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", KILLED_IN_THE_THIRD_PART, str(problems), str(out)]
    killed = subprocess.run([*command, chosen.model_dump_json()], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    finished = [f.name for f in (out / SCRATCH).glob("*/*") if not f.suffix]
    assert sorted(finished) == ["00000", "00001"]

    computed, real = [], prompt_parts.compute_part

    def counting(part, folder, **how):
        computed.append(folder.name.split(".")[0])
        real(part, folder, **how)

    monkeypatch.setattr(prompt_parts, "compute_part", counting)
    assert run(problems, out, chosen) == run(problems, tmp_path / "whole", chosen)
    assert computed[:6] == [f"{number:05d}" for number in range(2, 8)]


def test_parts_read_back_as_one_table(tmp_path: Path, problems: Path):
    source, folders = problems / "kept.parquet", []
    how = {"source": source, "shingle": 5, "banding": Banding.for_threshold(0.7, 32)}
    for number, part in enumerate(table_parts(source, ROWS_PER_PART)):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        prompt_parts.compute_part(part, folders[-1], **how)
    table, prompts = prompt_parts.computed_table(folders), pq.read_table(source)["prompt"]
    folded = fold(prompts.combine_chunks(), query_words)
    assert table["text"].to_pylist() == folded.to_pylist()
    digests = [blake2b(text, digest_size=16).digest() for text in folded.to_pylist()]
    assert table["prompt"].to_pylist() == digests
    rows = prompt_parts.first_rows(table["prompt"]).tolist()
    assert rows == [digests.index(digest) for digest in digests]
