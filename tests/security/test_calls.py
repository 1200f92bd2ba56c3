"""Files are data: no call in the product unpickles one, or runs one outside of the sandbox."""

import ast
import json
import os
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from security.audit import CLEAN, UNREACHABLE, VULNERABLE, audit
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from klear.configs.settings.sources import Source
from klear.tasks.data.sources import Piece, piece_rows
from klear.training.models import load_model, load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ("configs", "eval", "training", "tasks", "flows", "deployments")
UNPICKLING = {
    "eval/judge/workers.py": "tasks of our own processes, over a pipe or a Ray cluster",
    "tasks/engine/stage_process.py": "the work of a stage, from the run that started its process",
}
"""Where pickle.loads stands, and whose bytes it reads: never a file, never a model's text."""
EXECUTING = {
    "eval/sandbox/zygote/main.py": "the judged program, inside of the sandbox",
    "eval/sandbox/zygote/roles.py": "programs and checkers, inside of the sandbox",
    "eval/sandbox/zygote/asserts.py": "tests of a dataset, inside of the sandbox",
    "eval/programs/lcb_runner.py": "LiveCodeBench's own prelude, inside of the sandbox",
}
FORBIDDEN = {
    "pickle.load", "pickle.Unpickler", "marshal.load", "joblib.load", "dill.load", "dill.loads",
    "cloudpickle.load", "cloudpickle.loads", "shelve.open", "os.system", "os.popen",
    "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "pandas.read_pickle", "eval",
}  # fmt: skip


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """(file, dotted name of the function, call) of every call in the product."""
    files = sorted(f for folder in SOURCE for f in (ROOT / folder).rglob("*.py"))
    nodes = ((f, node) for f in files for node in ast.walk(ast.parse(f.read_text())))
    return [
        (str(f.relative_to(ROOT)), ast.unparse(node.func), node)
        for f, node in nodes
        if isinstance(node, ast.Call)
    ]


def keyword(call: ast.Call, name: str) -> str:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), "")


def test_no_call_reads_a_pickle_or_starts_a_shell() -> None:
    assert not [(file, name) for file, name, _ in calls() if name in FORBIDDEN]
    assert not [(f, n) for f, n, c in calls() if keyword(c, "shell") not in ("", "False")]
    assert {f for f, n, _ in calls() if n == "pickle.loads"} == set(UNPICKLING)
    assert {f for f, n, _ in calls() if n == "exec"} <= set(EXECUTING)
    assert {f for f, n, _ in calls() if n == "marshal.loads"} <= set(EXECUTING)


def test_every_model_and_tokenizer_is_loaded_without_pickle_and_without_code() -> None:
    loaded = [(f, n, c) for f, n, c in calls() if n.endswith(".from_pretrained")]
    assert len(loaded) >= 5
    for file, name, call in loaded:
        if name.startswith("GenerationConfig"):  # JSON alone
            continue
        rule = "WEIGHTS" if "Model" in name else "NO_CODE"
        unpacked = {ast.unparse(k.value).rpartition(".")[2] for k in call.keywords if not k.arg}
        assert rule in unpacked, f"{file}: {name} without **{rule}"
    assert not [f for f, _, c in calls() if keyword(c, "trust_remote_code") not in ("", "False")]
    assert not [
        f for f, n, c in calls() if n == "torch.load" and keyword(c, "weights_only") != "True"
    ]
    assert not [f for f, _, c in calls() if keyword(c, "allow_pickle") not in ("", "False")]
    loads = [(f, c) for f, n, c in calls() if n == "yaml.load"]
    assert not [f for f, c in loads if "Safe" not in keyword(c, "Loader")]


def test_the_exit_code_of_an_audit_tells_what_is_known(tmp_path: Path):
    safe = {"name": "a", "version": "1", "vulns": []}
    unsafe = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
    unknown = {"name": "c", "skip_reason": "not found on PyPI"}
    program = tmp_path / "pip-audit"
    for packages, code, message in (
        ([safe, unsafe], VULNERABLE, "b 2: PYSEC-1, fixed in 3\n"),
        ([safe, unknown], CLEAN, "0 known vulnerabilities\nlock: not known to the service: c"),
        ([unknown, unknown], UNREACHABLE, "nothing was checked"),
        (None, UNREACHABLE, "nothing was checked: no route to host"),
    ):
        report = "" if packages is None else json.dumps({"dependencies": packages})
        program.write_text(f"#!/bin/sh\necho '{report}'\necho 'no route to host' >&2\nexit 1\n")
        program.chmod(0o755)
        result, text = audit(str(program), Path("lock"))
        assert (result, message in text) == (code, True), text


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """A folder that is there if somebody's code ran; it never is."""
    yield tmp_path / "code-ran"
    assert not (tmp_path / "code-ran").exists()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    shape = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, vocab_size=16,
                        num_attention_heads=1, num_key_value_heads=1)  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"a": 0, "<u>": 1}, unk_token="<u>"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)
    return folder


def test_a_checkpoint_with_pickled_weights_is_refused_unread(checkpoint: Path, mark: Path) -> None:
    assert load_model(checkpoint).num_parameters() > 0
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(OSError, match=r"safetensors"):
        load_model(checkpoint)


def test_code_that_comes_with_a_checkpoint_is_not_run(checkpoint: Path, mark: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    config["model_type"] = "evil"
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    with pytest.raises(ValueError, match=r"trust_remote_code"):
        load_model(checkpoint)


def test_code_that_comes_with_a_tokenizer_is_not_run(checkpoint: Path, mark: Path) -> None:
    path = checkpoint / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.T", None]}}
    path.write_text(json.dumps(config))
    (checkpoint / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    try:  # a sound tokenizer.json may still be read, as data
        load_tokenizer(checkpoint)
    except (ValueError, OSError) as error:
        assert "trust_remote_code" in str(error) or "Evil" in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["evil.py", "rows.py"])
def test_a_dataset_that_is_a_program_is_refused(tmp_path: Path, mark: Path, name: str) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / name).write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    (folder / "data.pkl").write_bytes(pickle.dumps(Evil(mark)))
    source = Source(name="e", kind="hub", dataset=str(folder), revision="main")
    with pytest.raises(ValueError, match="source 'e': "):
        list(piece_rows(Piece(), source, Path(), "e"))
