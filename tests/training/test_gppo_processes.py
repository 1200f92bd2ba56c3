"""The same update on one process, on two, and on two that each hold half of the weights (gloo): the
normalisers are global. And two go on from a checkpoint to the bits they would have reached.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
SCRIPT = '''
import json, os, sys, zlib
from pathlib import Path
import torch
torch.set_num_threads(1)
from datasets import Dataset
from training import render
from training.checkpoints.saving import load_model, load_tokenizer, save_model, save_trained
from training.rl.config import GPPOConfig
from training.rl.trainer import GPPOTrainer
from training.checkpoints.whole_model import policy_on_rank0
from transformers import TrainerCallback
from training.schedule import world_size

from training.launch.rank import join_the_run

checkpoint, examples, out = sys.argv[1:]
join_the_run(Path(out))
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

def gppo(name, **more):
    trainer = GPPOTrainer(
        model=load_model(checkpoint, dtype="float32"), reward_funcs=pay, rollout_func=fixed,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [{"prompt": render.conversation(f"Make {i} from 1.")} for i in range(prompts)]),
        args=GPPOConfig(
            output_dir=out, per_device_train_batch_size=prompts * rollouts // world,
            steps_per_generation=1, num_generations=rollouts, max_steps=2, learning_rate=1e-3,
            max_completion_length=12, micro_batch_tokens=128, bf16=False, use_cpu=True,
            gradient_checkpointing=False, report_to=[], disable_tqdm=True, save_strategy="steps",
            save_steps=1, shuffle_dataset=False, lm_weight=0.5, logging_steps=1, **more))

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            policy = policy_on_rank0(trainer, copied=True) if state.global_step == 1 else None
            if policy is not None:
                save_model(policy, tokenizer, Path(out) / "kept")

    if name == "padded":
        trainer.add_callback(Keep())
    trainer.train(resume_from_checkpoint=f"{out}/checkpoint-1" if name == "resumed" else None)
    save_trained(trainer, Path(out) / name, bf16=False)
    if trainer.is_world_process_zero():
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        (Path(out) / f"{name}.json").write_text(json.dumps(losses))

gppo("padded")
if world > 1:
    gppo("resumed")
gppo("packed", packed=True)

from configs.settings.training import SFTSettings, TrainRuntime
from training.sft import train as sft
from training.launch.jobs import SFTJob
from training.sft.rows import tokenized

settings = SFTSettings(
    epochs=1, batch_tokens=1_000, checkpoint_steps=1, max_length=256,
    learning_rate=1e-3, min_learning_rate=1e-3,
    runtime=TrainRuntime(bf16=False, gradient_checkpointing=False, micro_batch_tokens=400))
job = SFTJob(out=Path(out), base=checkpoint, examples=examples, settings=settings)
rows = tokenized(job.examples, tokenizer, 256, Path(out) / f"tokens{os.environ.get('RANK', 0)}")
trainer = sft.build_trainer(
    job, load_model(checkpoint, dtype="float32"), tokenizer, rows, Path(out) / "checkpoints")
trainer.train()
assert trainer.args.gradient_accumulation_steps > 1
save_trained(trainer, Path(out) / "sft", bf16=False)
save_trained(trainer, Path(out) / "half", bf16=True)
if world > 1:
    assert trainer.is_fsdp_enabled == ("ACCELERATE_USE_FSDP" in os.environ)
    trainer = sft.build_trainer(
        job, load_model(checkpoint, dtype="float32"), tokenizer, rows, Path(out) / "checkpoints")
    trainer.train(resume_from_checkpoint=f"{out}/checkpoints/checkpoint-2")
    save_trained(trainer, Path(out) / "sft_resumed", bf16=False)
'''
SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


def run(script: Path, files: dict[str, Path], out: Path, processes: int, **env: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    done = subprocess.run(
        [
            sys.executable,
            *(launcher if processes > 1 else []),
            str(script),
            str(files["checkpoint"]),
            str(files["examples"]),
            str(out),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def alone(files, script):
    """What one process made."""
    run(script, files, script.parent / "one", 1)
    return script.parent / "one"


@pytest.mark.parametrize("env", [{}, SHARDED], ids=["copies", "shards"])
def test_two_processes_make_the_update_of_one(files, script, alone, tmp_path, env):
    run(script, files, tmp_path / "two", 2, **env)
    before = load_file(files["checkpoint"] / "model.safetensors")
    for kind in ("padded", "kept", "packed", "sft"):
        one = load_file(alone / kind / "model.safetensors")
        two = load_file(tmp_path / "two" / kind / "model.safetensors")
        assert any(not torch.equal(before[n], w) for n, w in one.items())
        for name, weight in one.items():
            torch.testing.assert_close(
                two[name], weight, rtol=1e-4, atol=2e-5, msg=f"{kind} {name}"
            )
    for kind in ("padded", "packed"):
        one, two = (json.loads((f / f"{kind}.json").read_text()) for f in (alone, tmp_path / "two"))
        assert len(one) == 2
        assert two == pytest.approx(one, rel=1e-3)
    for whole, resumed in (("padded", "resumed"), ("sft", "sft_resumed")):
        files_of = [tmp_path / "two" / n / "model.safetensors" for n in (whole, resumed)]
        assert files_of[0].read_bytes() == files_of[1].read_bytes()
    for folder in (alone, tmp_path / "two"):
        whole = load_file(folder / "sft" / "model.safetensors")
        half = load_file(folder / "half" / "model.safetensors")
        assert all(torch.equal(half[n], w.bfloat16()) for n, w in whole.items())
