"""Long chain-of-thought SFT (§3.1, §4.1) on TRL's SFTTrainer.

Loss on the answer's tokens only. Eq. 8 prints π where the gradient needs log π: this is the
negative log-likelihood.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from configs.training_stages import SFTSettings
from eval.records import Example
from eval.tables import read_table
from training import render
from training.batching import PlannedBatches, epoch_batches
from training.callbacks import WriteMetrics
from training.checkpoints import StableCheckpoints, latest, load_model, load_tokenizer, save_trained
from training.jobs import SFTJob
from training.optimizers import MuonAndAdamW
from training.progress_files import MetricsFile, ProgressFile
from training.schedule import sft_schedule, world_size

IGNORED = -100  # label of a token without loss
LOG_STEPS = 10
RENDER_BATCH = 1_000


class TokenBudgetSFTTrainer(SFTTrainer):
    """SFTTrainer over a fixed plan of batches, each with the same number of tokens."""

    def __init__(self, *args, plan: list[list[int]] | None = None, **kwargs) -> None:
        self.plan = plan
        super().__init__(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader:
        if self.plan is None:
            return super().get_train_dataloader()
        assert isinstance(self.train_dataset, Dataset)
        loader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=PlannedBatches(self.plan),
            collate_fn=self.data_collator,
        )
        return self.accelerator.prepare(loader)


def run_sft(job: SFTJob) -> dict[str, float]:
    """Fine-tune `job.base` on `job.examples` into `job.out/checkpoint`; resumes in `job.out`."""
    settings, scratch = job.settings, job.out / ".resume"
    tokenizer = load_tokenizer(job.base)
    model = load_model(
        job.base,
        attention=settings.runtime.attention,
        dtype="float32",  # bf16 compute (autocast) over fp32 weights, as the authors
    )
    dataset = tokenized(job.examples, tokenizer, settings.max_length, scratch / "tokens")
    checkpoints = scratch / "checkpoints"
    trainer = build_trainer(job, model, tokenizer, dataset, checkpoints)
    start = latest(checkpoints)
    done = int(start.name.rpartition("-")[2]) if start else 0
    if trainer.is_world_process_zero():
        metrics = MetricsFile(job.out, after_step=done)
        trainer.add_callback(WriteMetrics(metrics, ProgressFile(job.out)))
    trainer.train(resume_from_checkpoint=str(start) if start else None)
    save_trained(trainer, job.out / "checkpoint", bf16=settings.runtime.bf16)
    return {
        "steps": float(trainer.state.global_step),
        "truncated_examples": float(sum(dataset["truncated"])),
    }


def tokenized(
    examples: Path, tokenizer: PreTrainedTokenizerBase, max_length: int, cache: Path
) -> Dataset:
    """Columns input_ids, labels (−100 on the prompt), length, truncated; on disk, in order."""

    def rows(path: str) -> Iterator[dict]:
        for batch in _batches(read_table(Path(path), Example), RENDER_BATCH):
            prompts = render.prompt_ids(tokenizer, [e.prompt for e in batch])
            answers = render.response_ids(tokenizer, [e.response for e in batch])
            for prompt, answer in zip(prompts, answers, strict=True):
                ids = [*prompt, *answer]
                yield {
                    "input_ids": ids[:max_length],
                    "labels": ([IGNORED] * len(prompt) + answer)[:max_length],
                    "length": min(len(ids), max_length),
                    "truncated": len(ids) > max_length,
                }

    dataset = Dataset.from_generator(rows, gen_kwargs={"path": str(examples)}, cache_dir=str(cache))
    assert isinstance(dataset, Dataset)
    return dataset


def _batches(rows: Iterable[Example], size: int) -> Iterator[list[Example]]:
    batch: list[Example] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def build_trainer(
    job: SFTJob,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    checkpoints: Path,
) -> TokenBudgetSFTTrainer:
    """The trainer with its plan of batches (or TRL's packing) and its optimizer."""
    s, world = job.settings, world_size()
    units = sft_schedule(s, world)
    plan = None
    if not s.packing:
        plan = epoch_batches(
            dataset["length"],
            units.micro_batch_tokens,
            s.epochs,
            job.seed,
            world * units.accumulation,
        )
    optimizer = None
    if s.optimizer == "muon":
        optimizer = MuonAndAdamW(
            model,
            muon_lr=s.muon_learning_rate,
            adamw_lr=s.learning_rate,
            weight_decay=s.weight_decay,
        )
    return TokenBudgetSFTTrainer(
        model=model,
        args=sft_config(s, job.seed, checkpoints, units.accumulation, plan, world),
        train_dataset=dataset.remove_columns(["length", "truncated"]),
        processing_class=tokenizer,
        callbacks=[StableCheckpoints(checkpoints)],
        optimizers=(optimizer, None),
        plan=plan,
    )


def sft_config(
    s: SFTSettings,
    seed: int,
    checkpoints: Path,
    accumulation: int,
    plan: list[list[int]] | None,
    world: int,
) -> SFTConfig:
    """The paper's schedule (§4.1): cosine from the highest to the lowest learning rate."""
    steps = -1 if plan is None else len(plan) // (world * accumulation)
    every = min(LOG_STEPS, s.checkpoint_steps)
    while s.checkpoint_steps % every:
        every -= 1  # a log line never spans a checkpoint, so a resumed run logs the same lines
    return SFTConfig(
        output_dir=str(checkpoints),
        max_steps=steps,
        num_train_epochs=s.epochs,
        per_device_train_batch_size=1,  # one pack; a plan brings its own batches
        gradient_accumulation_steps=accumulation,
        learning_rate=s.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": s.min_learning_rate / s.learning_rate},
        warmup_steps=s.warmup_share if steps < 0 else round(s.warmup_share * steps),
        weight_decay=s.weight_decay,
        max_grad_norm=s.max_grad_norm,
        bf16=s.runtime.bf16,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=s.runtime.gradient_checkpointing,
        max_length=s.max_length,
        packing=s.packing,
        dataset_kwargs={"skip_prepare_dataset": True} if plan is not None else None,
        accelerator_config={"even_batches": False, "split_batches": False},
        shuffle_dataset=s.packing,
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
