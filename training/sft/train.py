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

from configs.settings.training import SFTSettings
from training import layout
from training.callbacks import WriteMetrics
from training.checkpoints import saving
from training.checkpoints.lineage import read_lineage, step_of
from training.checkpoints.whole_model import lora_config
from training.launch.jobs import SFTJob
from training.launch.progress_files import MetricsFile, ProgressFile
from training.launch.rank import rank0_first
from training.packing import check_packing, cut_steps, optimizer_steps
from training.schedule import is_sharded, world_size
from training.sft.optimizers import MuonAndAdamW
from training.sft.rows import report_too_long, tokenized, trainable

LOG_STEPS = 10


class PlannedSFTTrainer(SFTTrainer):
    """SFTTrainer over a fixed plan of micro-batches; the last row of its dataset is the filler."""

    def __init__(self, *args, plan: list[list[int]], **kwargs) -> None:
        self.plan = plan
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        assert isinstance(self.train_dataset, Dataset)
        filler = len(self.train_dataset) - 1
        loader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=[batch or [filler] for batch in self.plan],
            collate_fn=self.data_collator,
        )
        return self.accelerator.prepare(loader)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # then the first process marks it as whole


def run_sft(job: SFTJob) -> dict[str, float]:
    """Fine-tune `job.base` on `job.examples` into `job.out/checkpoint`; resumes in `job.out`."""
    s, scratch, progress = job.settings, job.out / layout.SCRATCH, ProgressFile(job.out)
    model, tokenizer = saving.load_to_train(job.base, s)

    def tokenising(n: int, of: int) -> None:
        # done: 0, for of the training, which a plan reads from this file, nothing is
        progress.report(0, of, f"tokenised {n:,} of {of:,} examples")

    tokens = scratch / layout.TOKENS
    dataset = rank0_first(
        tokens / "DONE",
        lambda: tokenized(job.examples, tokenizer, s.max_length, tokens, tokenising),
    )
    checkpoints = scratch / layout.CHECKPOINTS
    trainer = build_trainer(job, model, tokenizer, dataset, checkpoints)
    start = layout.latest(checkpoints)
    saving.check_layout(trainer, start)
    too_long = 0
    if trainer.is_world_process_zero():
        done = layout.step_of_checkpoint(start) if start else 0
        trainer.add_callback(WriteMetrics(MetricsFile(job.out, after_step=done), progress))
        report = job.out / layout.TOO_LONG
        too_long = report_too_long(dataset, job.examples, s.max_length, s.too_long, report)
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    step = step_of("sft", "the step before", job.seed, s)
    lineage = [*read_lineage(job.base, getattr(model.config, "_commit_hash", None)), step]
    saving.save_trained(trainer, job.out / layout.CHECKPOINT, bf16=s.runtime.bf16, lineage=lineage)
    treated = "truncated_examples" if s.too_long == "cut" else "dropped_examples"
    return {"steps": float(trainer.state.global_step), treated: float(too_long)}


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
                "optimizer=muon needs whole matrices, and FSDP2 cuts them: set optimizer=adamw, "
                "or topology.sharding=none"
            )
        optimizer = MuonAndAdamW(model, s.muon_learning_rate, s.learning_rate, s.weight_decay)
    return PlannedSFTTrainer(
        model=model,
        args=sft_config(s, job.seed, checkpoints, accumulation, len(steps)),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[saving.StableCheckpoints(checkpoints)],
        optimizers=(optimizer, None),
        peft_config=lora_config(s.lora),
        plan=plan,
    )


def sft_config(
    s: SFTSettings, seed: int, checkpoints: Path, accumulation: int, steps: int
) -> SFTConfig:
    """The paper's schedule (§4.1): cosine from the highest to the lowest learning rate."""
    # a log line never spans a checkpoint, so a resumed run logs the same lines
    every = max(n for n in range(1, LOG_STEPS + 1) if s.checkpoint_steps % n == 0)
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
