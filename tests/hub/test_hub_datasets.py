"""Sources of a hub, read through the product's own loading code from a hub on loopback."""

import json
from typing import Any

import pytest

SUMS = "org/sums"
COLLECT = """
import json, sys
from pathlib import Path
from configs.settings.sources import CollectSettings, Source
from eval.records import Problem
from eval.tables import read_table
from tasks.data.collect import collect

found = []
for number, fields in enumerate(json.loads(sys.argv[2])):
    out = Path(sys.argv[1]) / str(number)
    out.mkdir(parents=True)
    try:
        source = Source(name='s', kind='hub', **fields)
        collect.body(out, settings=CollectSettings(sources=(source,)), seed=0)
        prompts = [p.prompt for p in read_table(out / 'kept.parquet', Problem)]
        found.append({'prompts': prompts, **json.loads((out / 'sources.json').read_text())[0]})
    except ValueError as error:
        found.append({'error': str(error)})
print(json.dumps(found))
"""


def rows(word: str, count: int) -> bytes:
    lines = (json.dumps({"problem": f"{word} {i}", "answer": str(i)}) for i in range(count))
    return "".join(line + "\n" for line in lines).encode()


def parquet(word: str, count: int) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"problem": [f"{word} {i}" for i in range(count)],
                      "answer": [str(i) for i in range(count)]})  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def found(hub, tmp_path_factory) -> dict[str, Any]:
    """One client collects everything: its packages take longer to import than the rows to come."""
    home = tmp_path_factory.mktemp("home")
    sums = hub.add("datasets", SUMS, {"train.jsonl": rows("old", 3)})
    (old,) = sums.commits
    new = sums.commit(
        {"data/train-0.parquet": parquet("new", 2), "data/train-1.parquet": parquet("newer", 2)}
    )
    hub.add("datasets", "org/gated", {"train.jsonl": rows("g", 1)}, needs_key=True)
    asked = {
        "pinned": {"dataset": SUMS, "revision": old},
        "branch": {"dataset": SUMS},
        "by file": {"dataset": SUMS, "revision": old, "data_files": ["train.jsonl"]},
        "limited": {"dataset": SUMS, "revision": new, "limit": 3},
        "no commit": {"dataset": SUMS, "revision": "0" * 40},
        "no branch": {"dataset": SUMS, "revision": "v9"},
        "no name": {"dataset": "org/none"},
        "gated": {"dataset": "org/gated"},
        "no file": {"dataset": SUMS, "revision": old, "data_files": ["none.jsonl"]},
    }
    done = hub.client(home, "-c", COLLECT, str(home / "out"), json.dumps(list(asked.values())))
    assert done.returncode == 0, done.stderr[-3000:]
    hub_gone = hub.client(
        home, "-c", COLLECT, str(home / "offline"), json.dumps([asked["branch"]]),
        HF_ENDPOINT="http://127.0.0.1:9",
    )  # fmt: skip
    results = [*json.loads(done.stdout.splitlines()[-1]), *json.loads(hub_gone.stdout)]
    return {"old": old, "new": new, **dict(zip([*asked, "no hub"], results, strict=True))}


def test_a_pinned_revision_is_read_although_the_branch_has_moved_on(found):
    assert found["pinned"]["prompts"] == ["old 0", "old 1", "old 2"]
    assert found["pinned"]["revision"] == found["old"]
    assert found["by file"]["prompts"] == found["pinned"]["prompts"]


def test_a_branch_is_resolved_to_the_commit_that_is_read_and_named(found):
    assert found["branch"]["prompts"] == ["new 0", "new 1", "newer 0", "newer 1"]
    assert found["branch"]["revision"] == found["new"]
    assert found["limited"]["prompts"] == ["new 0", "new 1", "newer 0"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no commit", "Revision '0000"),
        ("no branch", "revision=v9 split=train: it has no such revision"),
        ("no name", "the hub has none of this name, or it is private: set HF_TOKEN"),
        ("gated", "access to it is restricted: accept its terms on the hub and set HF_TOKEN"),
        ("no file", "none.jsonl"),
        ("no hub", "Without a network, name local copies of its data files"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_why(found, case, said):
    line = found[case]["error"]
    assert line.startswith("source 's': cannot load dataset=")
    assert said in line
    assert "\n" not in line
