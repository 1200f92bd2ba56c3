"""The example of training/README.md runs as it stands there."""

import re
from pathlib import Path

import torch

README = Path(__file__).parents[2] / "training" / "README.md"


def test_the_example_trains_with_standard_arguments_of_trl(files, tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert '"Qwen/Qwen3-0.6B"' in example
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    example = example.replace("Qwen/Qwen3-0.6B", str(files["checkpoint"]))
    assert '"out",' in example
    example = example.replace('"out",', '"out", use_cpu=True, bf16=False,')
    exec(example, names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 2 * 8 * 8 // 32
    (line,) = [x for x in trainer.state.log_history if "train_loss" in x]
    assert line["train_runtime"] > 0
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
