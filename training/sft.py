"""Long chain-of-thought SFT (§3.1, §4.1) on TRL's SFTTrainer. Loss on the answer's tokens only: the
negative log-likelihood (Eq. 8 prints π for log π), a mean over those of the optimizer step."""

import math
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ..eval.answers import THINK_CLOSE, THINK_OPEN
from ..eval.records.tables import column
from . import models
from .callbacks import (
    FiniteCheckpoints,
    StableCheckpoints,
    likely_cause,
    skipped_by_scaler,
    train,
    trainer_args,
)
from .launch import result_files
from .launch.jobs import SFTJob
from .launch.ranks import rank0_first, world_size
from .packing import cut_steps, optimizer_steps
from .render import ChatFormat

IGNORED = -100  # label of a token without loss
LOG_STEPS = 10
MOMENTUM = 0.95  # of Muon


def run_sft(job: SFTJob) -> dict[str, float]:
    """Fine-tune `job.base` on `job.examples` into `job.out/checkpoint`; resumes in `job.out`."""
    s, progress = job.settings, result_files.ProgressFile(job.out)
    model, chat = models.load_to_train(job.base, s)

    cache = job.out / result_files.SCRATCH / result_files.TOKENS
    arguments = job.examples, chat, s.max_length, cache, progress.report
    dataset = rank0_first(cache / "DONE", lambda: tokenized(*arguments))
    most, longest = models.positions_of(model.config), max(dataset["length"])
    if most and longest > most:
        fix = "lower sft.max_length, or set base.positions"
        raise ValueError(
            f"examples have up to {longest:,} tokens, the model {most:,} places: {fix}"
        )
    left_out = thinking_left_out(chat, column(job.examples, "response"))
    to_train, held_out = split(dataset, job)
    trainer = build_trainer(job, model, chat.tokenizer, to_train)
    trainer.held_out = held_out and held_out.remove_columns(["length", "tokens"])
    train(trainer, job, progress)
    lineage = models.lineage_after(job.base, model, "sft", job.seed, s)
    target = job.out / result_files.CHECKPOINT
    models.save_trained(trainer, target, s.runtime.precision, lineage, chat.kwargs)
    cut = sum(tokens > s.max_length for tokens in dataset["tokens"])
    return {
        "steps": float(trainer.state.global_step),
        "truncated_examples": float(cut),
        **({"thinking_left_out": float(left_out)} if left_out else {}),
    }


def thinking_left_out(chat: ChatFormat, responses: Iterable[str]) -> int:
    """How many answers lose their thinking, as prompts close the think block; says so."""
    if THINK_CLOSE not in chat.prefill:
        return 0
    thoughts = (r.partition(THINK_CLOSE)[0].partition(THINK_OPEN)[2].strip() for r in responses)
    if count := sum(map(bool, thoughts)):
        why = "the prompts of this chat template close the think block; to train on it, set"
        fix = "sft.chat_template_kwargs to what switches thinking on, as {enable_thinking: true}"
        print(f"the thinking of {count:,} answers is left out: {why} {fix}", flush=True)
    return count


def tokenized(
    examples: Path, chat: ChatFormat, max_length: int, cache: Path,
    report: Callable[[int, int, str], None] = lambda *_: None,
) -> Dataset:  # fmt: skip
    """Columns input_ids, labels (−100 on the prompt), length, tokens (before any cut); on disk in
    `cache`, in the order of the file. `report` is called before every batch, with none done."""

    def rows(batch: dict[str, list[str]], places: list[int]) -> dict[str, list[Any]]:
        report(0, 0, f"tokenised {places[0]:,} of {len(texts):,} examples")
        prompts, answers = chat.prompt_ids(batch["prompt"]), chat.response_ids(batch["response"])
        both = list(zip(prompts, answers, strict=True))
        return {
            "input_ids": [[*p, *a][:max_length] for p, a in both],
            "labels": [([IGNORED] * len(p) + a)[:max_length] for p, a in both],
            "length": [min(len(p) + len(a), max_length) for p, a in both],
            "tokens": [len(p) + len(a) for p, a in both],
        }

    columns = ["prompt", "response"]
    texts = Dataset.from_parquet(str(examples), columns=columns, cache_dir=str(cache))
    assert isinstance(texts, Dataset)
    same = Hasher.hash([chat.tokenizer, dict(chat.kwargs), max_length, texts._fingerprint])
    options = {"batched": True, "remove_columns": columns, "new_fingerprint": same}
    return texts.map(rows, with_indices=True, **options)


def split(dataset: Dataset, job: SFTJob) -> tuple[Dataset, Dataset | None]:
    """(rows to train on, rows held out: all answers to `validation_problems` problems; None if
    none is asked for). Raises ValueError if nothing is left to train on."""
    if not (count := job.settings.validation_problems):
        return dataset, None
    problems = list(column(job.examples, "problem_id"))
    if count >= len(names := sorted(set(problems))):
        raise ValueError(f"validation_problems={count} leaves none of {len(names)} to train on")
    aside = set(random.Random(job.seed).sample(names, count))
    train, held_out = ([i for i, p in enumerate(problems) if (p in aside) == x] for x in (0, 1))
    return dataset.select(train), dataset.select(held_out)


class PlannedSFTTrainer(FiniteCheckpoints, SFTTrainer):
    """SFTTrainer over a fixed plan of micro-batches; the last row of its dataset is the filler. A
    loss or a gradient that is not finite ends it with FloatingPointError."""

    held_out: Dataset | None = None  # rows whose loss is logged, too

    def __init__(self, *args, plan: list[list[int]], **kwargs) -> None:
        self.plan, self._micro = plan, 0
        super().__init__(*args, **kwargs)
        models.exact_sums_and_outputs(self)

    def get_train_dataloader(self) -> DataLoader:
        assert isinstance(self.train_dataset, Dataset)
        filler = len(self.train_dataset) - 1
        loader = DataLoader(
            self.train_dataset,  # type: ignore[arg-type]
            batch_sampler=[batch or [filler] for batch in self.plan],
            collate_fn=self.data_collator,
        )
        return self.accelerator.prepare(loader)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        if not loss.isfinite():
            self._refuse("loss", float(loss), self._rows(self._micro))
        if not any(self._shares(self._micro)):  # TRL counts a filler as 0
            for name in ("entropy", "mean_token_accuracy"):
                self._metrics["train"][name].pop()
        self._micro = 0 if self.accelerator.sync_gradients else self._micro + 1
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm: Any = super()._get_grad_norm(model, grad_norm)
        if not math.isfinite(float(norm)) and not skipped_by_scaler(self):
            micros = range(self.args.gradient_accumulation_steps)
            self._refuse("gradient norm", float(norm), [i for m in micros for i in self._rows(m)])
        return norm

    def _rows(self, micro: int) -> list[int]:
        """The rows that a micro-batch of the present step has on this process."""
        return self._shares(micro)[self.accelerator.process_index]

    def _shares(self, micro: int) -> list[list[int]]:
        """The rows that each process has."""
        step = self.state.global_step * self.args.gradient_accumulation_steps + micro
        processes = self.accelerator.num_processes
        return self.plan[step * processes : (step + 1) * processes]

    def _refuse(self, name: str, value: float, rows: list[int]) -> None:
        which = ", ".join(map(str, rows[:8])) + (f" … ({len(rows)} rows)" if rows[8:] else "")
        batch = f"in the batch of examples {which} (counted from 0, without those held out)"
        step = f"step {self.state.global_step + 1}: the {name} is {value}"
        raise FloatingPointError(f"{step} {batch}; {likely_cause(self)}")

    def _get_learning_rate(self) -> float:
        self._rates = self.lr_scheduler.get_last_lr()  # type: ignore[union-attr]
        return super()._get_learning_rate()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Two optimizers have a learning rate each; fp16 finds its scale by steps that overflow."""
        scaler = self.accelerator.scaler
        if scaler is not None and "loss" in logs:
            logs["loss_scale"] = scaler.get_scale()
            if not math.isfinite(logs.get("grad_norm", 0.0)):
                del logs["grad_norm"]
        if self.held_out and "loss" in logs:
            logs["eval/loss"] = self._validation_loss(self.held_out)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # accelerate wraps it
        if "learning_rate" in logs and isinstance(optimizer, MuonAndAdamW):
            del logs["learning_rate"]
            names = ("learning_rate/muon", "learning_rate/adamw")
            logs.update(zip(names, map(float, self._rates), strict=True))
        super().log(logs, start_time)

    def _validation_loss(self, rows: Dataset) -> float:
        """Nats per answer token, without a random number; all ranks make as many passes."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        model: Any = self.model_wrapped.eval()  # type: ignore[union-attr]
        sums = torch.zeros(2, device=self.accelerator.device, dtype=torch.float64)
        with torch.no_grad(), self.compute_loss_context_manager():
            for i in range(rank, -(-len(rows) // world) * world, world):
                batch = self._prepare_inputs(self.data_collator([rows[i % len(rows)]]))
                count = (batch["labels"][:, 1:] != IGNORED).sum() * (i < len(rows))
                sums += torch.stack([self.compute_loss(model, batch).double() * count, count])
        model.train()
        self._metrics["eval"].clear()  # TRL's own, of these passes
        total, tokens = map(float, self.accelerator.reduce(sums, "sum"))
        if not math.isfinite(total):
            step = f"step {self.state.global_step}: the loss of the held-out examples is"
            raise FloatingPointError(f"{step} {total}; {likely_cause(self)}")
        return total / max(tokens, 1)


def build_trainer(
    job: SFTJob, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, dataset: Dataset
) -> PlannedSFTTrainer:
    """The trainer with its plan of micro-batches and its optimizer."""
    s, world = job.settings, world_size()
    if s.packing and (why := models.packing_mistake(model)):
        raise ValueError(f"packing would mix the sequences of a row: {why}. Set sft.packing=false")
    rows, lengths = dataset.remove_columns(["length", "tokens"]), list(dataset["length"])
    filler = {"input_ids": rows[0]["input_ids"][:2], "labels": [IGNORED] * 2}
    steps = optimizer_steps(lengths, s.batch_tokens, s.max_length, s.epochs, job.seed)
    plan, accumulation = cut_steps(steps, lengths, s.runtime.micro_batch_tokens, world)
    optimizer = None
    if s.optimizer == "muon":
        optimizer = MuonAndAdamW(model, s.muon_learning_rate, s.learning_rate, s.weight_decay)
    return PlannedSFTTrainer(
        model=model,
        args=sft_config(job, accumulation, len(steps)),
        train_dataset=rows.add_item(filler),  # type: ignore[arg-type]
        processing_class=tokenizer,
        callbacks=[StableCheckpoints()],
        peft_config=models.adapters(model, s.lora),
        optimizers=(optimizer, None),
        plan=plan,
    )


def sft_config(job: SFTJob, accumulation: int, steps: int) -> SFTConfig:
    """The paper's schedule (§4.1): cosine from the highest to the lowest learning rate."""
    s, folder = job.settings, job.out / result_files.SCRATCH / result_files.CHECKPOINTS
    # a log line never spans a checkpoint, so a resumed run logs the same lines
    every = max(n for n in range(1, LOG_STEPS + 1) if s.checkpoint_steps % n == 0)
    return SFTConfig(
        **trainer_args(s, job.seed, folder),
        max_steps=steps,
        per_device_train_batch_size=2,  # nominal: the plan brings its own batches
        gradient_accumulation_steps=accumulation,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": s.min_learning_rate / s.learning_rate},
        warmup_steps=round(s.warmup_share * steps),
        max_length=None,  # the rows are cut already, and counted
        router_aux_loss_coef=0.0,  # of experts: its mean would depend on the micro-batches
        padding_free=s.packing,
        dataset_kwargs={"skip_prepare_dataset": True},
        shuffle_dataset=False,  # the plan does
        accelerator_config={"even_batches": False, "split_batches": False},
        logging_steps=every,
        logging_first_step=False,
        save_steps=s.checkpoint_steps,
    )


class MuonAndAdamW(torch.optim.AdamW):
    """Muon for the matrices of the transformer, AdamW for embeddings, norms and output head. Needs
    unsharded weights. (`torch.optim.Muon` computes in bfloat16, which is slow on CPUs.)"""

    def __init__(
        self, model: nn.Module, muon_lr: float, adamw_lr: float, weight_decay: float
    ) -> None:
        matrices, rest = split_parameters(model)
        muon = {"params": matrices, "lr": muon_lr, "weight_decay": weight_decay}
        super().__init__([muon, {"params": rest, "weight_decay": 0.0}], adamw_lr, (0.9, 0.98))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        muon = self.param_groups[0]
        for p in muon["params"]:
            if p.grad is None:
                continue
            if not (state := self.state[p]):  # AdamW looks for the step when it loads a state
                state.update(step=torch.zeros(()), momentum=torch.zeros_like(p))
            state["step"] += 1
            momentum = state["momentum"].lerp_(p.grad, 1 - MOMENTUM)
            update = orthogonal(p.grad.lerp(momentum, MOMENTUM))  # Nesterov
            p.mul_(1 - muon["lr"] * muon["weight_decay"])
            p.add_(update, alpha=-muon["lr"] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))
            p.grad = None  # the rest is AdamW's
        super().step()


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """U·S·Vᵀ [m, n] for U·Σ·Vᵀ [m, n], every singular value in S between about 0.7 and 1.2: five
    Newton-Schulz steps x ← a·x + (b·G + c·G²)·x, G = x·xᵀ (Keller Jordan's Muon)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if wide is not matrix else x


def split_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(2-D weights outside embeddings and output head, all other trainable parameters)."""
    head = getattr(model, "lm_head", None)
    edges = (m for m in model.modules() if isinstance(m, nn.Embedding) or m is head)
    outside = {id(p) for m in edges for p in m.parameters()}
    matrices, rest = [], []
    for p in model.parameters():
        if p.requires_grad:
            (matrices if p.ndim == 2 and id(p) not in outside else rest).append(p)
    return matrices, rest
