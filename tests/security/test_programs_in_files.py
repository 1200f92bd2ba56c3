"""Files with a program in them: each is refused, and the program does not run."""

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from klear.configs.settings.sources import Source
from klear.tasks.data.sources import Piece, piece_rows
from klear.training.checkpoints import load_model, load_tokenizer


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
    """A sound checkpoint of a tiny model."""
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
