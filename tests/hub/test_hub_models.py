"""`klear eval` of a hub model on a hub benchmark: both come from a hub on loopback."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.settings.sources import catalogue
from configs.settings.training import BaseModelSettings

MODEL, AIME = "org/tiny", catalogue()["aime24"]
TINY = BaseModelSettings(
    kind="random", hidden=64, layers=1, heads=2, kv_heads=1, head_dim=32, mlp=64, vocabulary=280,
    max_positions=512,
)  # fmt: skip


class Evaluated(NamedTuple):
    code: int
    out: str
    error: str


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A model as it lies on the hub: config, tokenizer, weights."""
    from training.base import small_model, small_tokenizer
    from training.checkpoints import save_model

    folder = tmp_path_factory.mktemp("model")
    tokenizer = small_tokenizer(["user\nMake 1 from 2, 3, 4.\nassistant\n<think>"], 280)
    save_model(small_model(TINY, tokenizer, 0), tokenizer, folder)
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


@pytest.fixture(scope="module")
def home(hub, files, tmp_path_factory) -> Path:
    """A client's home; the hub has the model, one with terms to accept, and the benchmark."""
    hub.add("models", MODEL, files)
    hub.add("models", "org/gated", files, needs_key=True)
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(2)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    benchmark = hub.add("datasets", AIME["dataset"], {"train.jsonl": lines.encode()})
    benchmark.commits = {AIME["revision"]: benchmark.commits.popitem()[1]}
    return tmp_path_factory.mktemp("home")


def klear_eval(hub: Any, home: Path, *words: str, **environment: str) -> Evaluated:
    more = ("--bench", "aime24", "--engine", "transformers", "--max-tokens", "4", "--k", "2")
    done = hub.client(home, "-m", "flows.cli", "eval", *words, *more, **environment)
    return Evaluated(done.returncode, done.stdout, done.stderr)


def test_a_hub_model_is_scored_on_a_hub_benchmark_and_again_without_the_hub(hub, home, files):
    first = klear_eval(hub, home, MODEL, "--out", str(home / "a"))
    assert first.code == 0, first.error
    (commit,) = hub.repositories["models", MODEL].commits
    (result,) = json.loads((home / "a" / "results.json").read_text())
    assert (result["statement"]["model"], result["statement"]["checkpoint"]) == (MODEL, commit)
    assert (result["problems"], result["samples"], result["k"]) == (2, 4, 2)
    assert f"model: {MODEL} ({commit})" in first.out
    sent = {name: n for name, n in hub.asked.items() if name.startswith(MODEL)}
    assert sent == {f"{MODEL}/{name}@{commit}": 1 for name in files}  # nothing twice, nothing else
    asked = hub.asked.total()
    offline = klear_eval(hub, home, MODEL, "--temperature", "0.5", "--out", str(home / "b"),
                         HF_HUB_OFFLINE="1")  # fmt: skip
    assert offline.code == 0, offline.error
    assert hub.asked.total() == asked  # model and benchmark are on this machine
    (again,) = json.loads((home / "b" / "results.json").read_text())
    assert again["questions"] == result["questions"]


MANY = """
import contextlib, io, json, sys
from flows.cli.main import main

for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(['eval', *words, '--bench', 'aime24', '--engine', 'transformers'])
    print(json.dumps([code, said.getvalue()]))
"""


def test_a_model_that_the_hub_does_not_give_is_one_line_that_says_why(hub, home):
    reasons = {
        ("org/none",): "the hub has none of this name, or it is private: set HF_TOKEN",
        ("org/gated",): "access to it is restricted: accept its terms on the hub and set HF_TOKEN",
        (MODEL, "--set", "engine.revision=v9"): "it has no such revision",
    }
    done = hub.client(home, "-c", MANY, json.dumps(list(reasons)))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(reasons), done.stderr
    for (words, reason), (code, said) in zip(reasons.items(), found, strict=True):
        line = said.strip().splitlines()[-1]
        assert code == 1
        assert line.startswith(f"klear eval: {words[0]} (revision ")
        assert line.endswith(f"cannot be fetched from the hub: {reason}")
        assert "Traceback" not in said
