"""GPPO in a plain TRL script, on a CPU, without a download: `python docs/examples/gppo_in_trl.py`.

A random Qwen3 of 0.2 million parameters is paid for digits. The reward climbs from the share of
digits in its alphabet to nearly 1. Your own model, reward and data go where the comments say.
"""

import torch
from datasets import Dataset
from transformers import PrinterCallback

from klear.configs.settings.training import BaseModelSettings
from klear.training.base import prepare_for_chat, small_model, small_tokenizer
from klear.training.rl.config import GPPOConfig
from klear.training.rl.trainer import GPPOTrainer

PROMPTS = [f"Write digits, as in {n} {n * 7}." for n in range(32)]


def share_of_digits(completions, **_):
    """One reward an answer; None would mean that it has no score and leaves its group."""
    texts = [completion[0]["content"] for completion in completions]
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in texts]


def main(out: str = "gppo-out", steps: int = 80) -> list[float]:
    """Train; the mean reward of every rollout."""
    torch.set_num_threads(1)  # at this size two wait for each other
    size = BaseModelSettings(kind="random", hidden=64, layers=2, vocabulary=300)
    tokenizer = small_tokenizer(PROMPTS, size.vocabulary)
    model = small_model(size, tokenizer, seed=0)  # or "Qwen/Qwen3-0.6B", without processing_class
    prepare_for_chat(model, tokenizer)
    trainer = GPPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=share_of_digits,
        args=GPPOConfig(
            out,
            policy_loss="gppo",  # or clip_higher, grpo, cispo
            num_generations=8,
            per_device_train_batch_size=32,  # a mini-batch: 4 prompts × 8 answers
            steps_per_generation=4,  # four of them a rollout
            max_completion_length=16,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            max_steps=steps,
            logging_steps=4,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            use_cpu=True,  # on a GPU remove this line and the next
            bf16=False,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
        ),
    )
    trainer.remove_callback(PrinterCallback)  # it prints every metric of every step
    trainer.train()
    return [line["reward"] for line in trainer.state.log_history if "reward" in line]


if __name__ == "__main__":
    rewards = main()
    print("mean reward of each rollout:", *(f"{reward:.2f}" for reward in rewards))
