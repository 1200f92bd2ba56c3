"""Long chain-of-thought SFT (§3.1, §4.1) on TRL's SFTTrainer.

Loss on the answer's tokens only. Eq. 8 prints π where the gradient needs log π: this is the
negative log-likelihood, a mean over the answer tokens of the whole optimizer step.
"""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from configs.training_stages import SFTSettings
from training import render
from training.adapters import lora_config
from training.batching import PlannedBatches, cut_steps, optimizer_steps
from training.callbacks import WriteMetrics
from training.checkpoints import (
    StableCheckpoints,
    check_layout,
    load_model,
    load_tokenizer,
    save_trained,
)
from training.jobs import SFTJob
from training.lineage import read_lineage, step_of
from training.optimizers import MuonAndAdamW
from training.packing import check_packing
from training.progress_files import MetricsFile, ProgressFile
from training.rank import after_the_first
from training.schedule import is_sharded, world_size
from training.sft_rows import report_too_long, tokenized, trainable
from training.stable import CHECKPOINTS, latest

LOG_STEPS = 10


class PlannedSFTTrainer(SFTTrainer):
    """SFTTrainer over a fixed plan of micro-batches; the last row of its dataset is the filler."""

    def __init__(self, *args, plan: list[list[int]], **kwargs) -> None:
        self.plan = plan
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        assert isinstance(self.train_dataset, Dataset)
        loader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=PlannedBatches(self.plan, filler=len(self.train_dataset) - 1),
            collate_fn=self.data_collator,
        )
        return self.accelerator.prepare(loader)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # then the first process marks it as whole


def run_sft(job: SFTJob) -> dict[str, float]:
    """Fine-tune `job.base` on `job.examples` into `job.out/checkpoint`; resumes in `job.out`."""
    s, scratch = job.settings, job.out / ".resume"
    tokenizer = load_tokenizer(job.base)
    render.check_tokenizer(tokenizer)
    model = load_model(
        job.base,
        attention=s.runtime.attention,
        # bf16 compute (autocast) over fp32 weights, as the authors; frozen weights need no fp32
        dtype="bfloat16" if s.lora and s.runtime.bf16 else "float32",
    )
    dataset = after_the_first(
        scratch / "tokens" / "DONE", lambda: _tokenized(job, tokenizer, scratch / "tokens")
    )
    checkpoints = scratch / CHECKPOINTS
    trainer = build_trainer(job, model, tokenizer, dataset, checkpoints)
    start = latest(checkpoints)
    check_layout(trainer, start)
    done = int(start.name.rpartition("-")[2]) if start else 0
    too_long = 0
    if trainer.is_world_process_zero():
        metrics = MetricsFile(job.out, after_step=done)
        trainer.add_callback(WriteMetrics(metrics, ProgressFile(job.out)))
        report = job.out / "too_long.parquet"
        too_long = report_too_long(dataset, job.examples, s.max_length, s.too_long, report)
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    commit = getattr(model.config, "_commit_hash", None)
    step = step_of("sft", "the step before", job.seed, s)
    save_trained(
        trainer,
        job.out / "checkpoint",
        bf16=s.runtime.bf16,
        lineage=[*read_lineage(job.base, commit), step],
    )
    treated = "truncated_examples" if s.too_long == "cut" else "dropped_examples"
    return {"steps": float(trainer.state.global_step), treated: float(too_long)}


def _tokenized(job: SFTJob, tokenizer: PreTrainedTokenizerBase, cache: Path) -> Dataset:
    progress = ProgressFile(job.out)
    return tokenized(
        job.examples,
        tokenizer,
        job.settings.max_length,
        cache,
        # done: 0, for of the training, which a plan reads from this file, nothing is
        lambda n, of: progress.report(0, of, f"tokenised {n:,} of {of:,} examples"),
    )


def build_trainer(
    job: SFTJob,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    checkpoints: Path,
) -> PlannedSFTTrainer:
    """The trainer with its plan of micro-batches and its optimizer."""
    s, world = job.settings, world_size()
    rows, lengths = trainable(dataset, s.max_length, s.too_long)
    steps = optimizer_steps(lengths, s.batch_tokens, s.max_length, s.epochs, job.seed)
    plan, accumulation = cut_steps(steps, lengths, s.runtime.micro_batch_tokens, world)
    if s.packing:
        check_packing(model)
    optimizer = None
    if s.optimizer == "muon":
        if s.lora:
            raise ValueError("optimizer=muon needs whole weights: use adamw with lora")
        if world > 1 and is_sharded():
            raise ValueError(
                "optimizer=muon needs whole matrices, and FSDP2 and ZeRO-3 cut them: set "
                "optimizer=adamw, or topology.sharding=none"
            )
        optimizer = MuonAndAdamW(
            model,
            muon_lr=s.muon_learning_rate,
            adamw_lr=s.learning_rate,
            weight_decay=s.weight_decay,
        )
    return PlannedSFTTrainer(
        model=model,
        args=sft_config(s, job.seed, checkpoints, accumulation, len(steps)),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[StableCheckpoints(checkpoints)],
        optimizers=(optimizer, None),
        peft_config=lora_config(s.lora),
        plan=plan,
    )


def sft_config(
    s: SFTSettings, seed: int, checkpoints: Path, accumulation: int, steps: int
) -> SFTConfig:
    """The paper's schedule (§4.1): cosine from the highest to the lowest learning rate."""
    every = min(LOG_STEPS, s.checkpoint_steps)
    while s.checkpoint_steps % every:
        every -= 1  # a log line never spans a checkpoint, so a resumed run logs the same lines
    return SFTConfig(
        output_dir=str(checkpoints),
        max_steps=steps,
        per_device_train_batch_size=2,  # nominal: the plan brings its own batches
        gradient_accumulation_steps=accumulation,
        learning_rate=s.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": s.min_learning_rate / s.learning_rate},
        warmup_steps=round(s.warmup_share * steps),
        weight_decay=s.weight_decay,
        max_grad_norm=s.max_grad_norm,
        bf16=s.runtime.bf16,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=s.runtime.gradient_checkpointing,
        max_length=None,  # the rows are cut or dropped already, and reported
        padding_free=s.packing,
        dataset_kwargs={"skip_prepare_dataset": True},
        accelerator_config={"even_batches": False, "split_batches": False},
        shuffle_dataset=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        logging_steps=every,
        logging_first_step=False,
        save_strategy="steps",
        save_steps=s.checkpoint_steps,
        seed=seed,
        data_seed=seed,
        report_to=[],
        disable_tqdm=True,
    )
