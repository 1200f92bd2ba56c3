"""The same update on one process and on two: the normalisers are global."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
SCRIPT = '''
import sys, zlib
from pathlib import Path
import torch
torch.set_num_threads(1)
from datasets import Dataset
from training import render
from training.checkpoints import load_model, load_tokenizer, save_trained
from training.gppo_config import GPPOConfig
from training.gppo_trainer import GPPOTrainer
from training.schedule import world_size

checkpoint, out = sys.argv[1:]
tokenizer = load_tokenizer(checkpoint)

def crc(*parts):
    return zlib.crc32(repr(parts).encode())

def fixed(prompts, trainer):
    """Answers of different lengths that depend on the prompt and the place in the group alone."""
    texts = [p[-1]["content"] for p in prompts]
    answers = [
        [65 + crc(t, i % 4, j) % 60 for j in range(2 + crc(t, i % 4) % 9)]
        for i, t in enumerate(texts)
    ]
    return {"prompt_ids": render.prompt_ids(tokenizer, texts), "completion_ids": answers,
            "logprobs": None}

def pay(prompts, completions, **_):
    texts = [p[-1]["content"] for p in prompts]
    return [float(crc(t) % 3 > 0 and (i % 4) < 1 + crc(t) % 2) for i, t in enumerate(texts)]

world, prompts, rollouts = world_size(), 8, 4
trainer = GPPOTrainer(
    model=load_model(checkpoint, dtype="float32"), reward_funcs=pay, rollout_func=fixed,
    processing_class=tokenizer,
    train_dataset=Dataset.from_list(
        [{"prompt": render.conversation(f"Make {i} from 1.")} for i in range(prompts)]),
    args=GPPOConfig(
        output_dir=out, per_device_train_batch_size=prompts * rollouts // world,
        steps_per_generation=1, num_generations=rollouts, max_steps=2, learning_rate=1e-3,
        max_completion_length=12, micro_batch_tokens=128, bf16=False, use_cpu=True,
        gradient_checkpointing=False, report_to=[], disable_tqdm=True, save_strategy="no",
        shuffle_dataset=False, lm_weight=0.5, logging_steps=1))
trainer.train()
save_trained(trainer, Path(out) / "checkpoint", bf16=False)
'''


def run(script: Path, checkpoint: Path, out: Path, processes: int) -> dict[str, torch.Tensor]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    done = subprocess.run(
        [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(script),
            str(checkpoint),
            str(out),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(out / "checkpoint" / "model.safetensors")


def test_two_processes_make_the_update_of_one(files, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    one = run(script, files["checkpoint"], tmp_path / "one", 1)
    two = run(script, files["checkpoint"], tmp_path / "two", 2)
    before = load_file(files["checkpoint"] / "model.safetensors")
    assert any(not torch.equal(before[n], w) for n, w in one.items())
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-4, atol=2e-5)
