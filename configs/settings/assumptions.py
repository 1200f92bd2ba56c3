"""What a plan takes for granted until the store holds a measurement; all of it is printed.

What needs a GPU or somebody's endpoint was not measured.
"""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from configs.settings.base import Settings

Share = Annotated[float, Field(gt=0, le=1)]


class Assumptions(Settings):
    """Counts, sizes and rates. One's own stand in a profile, or come from earlier results."""

    sft_prompts: PositiveInt = 93_750
    """Prompts the teacher answers; 16 answers make 1.5 M (§3.1)"""
    rl_math_prompts: PositiveInt = 88_000
    """Math prompts that pass the RL filter (§3.2.1)"""
    rl_code_prompts: PositiveInt = 18_000
    """Code prompts that pass the RL filter (§3.2.1)"""
    rl_kept: Share = 0.5
    """Share of the asked prompts that pass it; not in the paper"""
    source_rows: PositiveInt = 200_000
    """Rows of a hub source that nobody has counted"""
    kept: Share = 0.9
    """Share of rows that dedup, decontamination keep"""
    benchmark_problems: PositiveInt = 100
    """Problems of a benchmark that nobody has counted"""
    prompt_tokens: PositiveInt = 300
    """Mean tokens of a prompt"""
    answer_tokens: PositiveInt = 10_000
    """Mean tokens of a long-thinking answer, below max_tokens; not in the paper, not measured"""
    train_mfu: Share = 0.4
    """Training: share of the GPU's peak, at 6·N FLOPs a token; not measured: Llama 3 reports 0.38
    to 0.43 on H100 (arXiv 2407.21783, Table 4)"""
    forward_mfu: Share = 0.4
    """Log-probabilities: share of the peak, at 2·N FLOPs a token; not measured: as in training"""
    generate_mfu: Share = 0.05
    """Generation, bound by memory: the same, at 2·N FLOPs a token; not measured: measure yours with
    vLLM's own benchmark and set generated_per_gpu"""
    trained_per_gpu: PositiveFloat | None = None
    """Tokens trained on a second and GPU; takes the place of train_mfu"""
    generated_per_gpu: PositiveFloat | None = None
    """Tokens generated a second and GPU; takes the place of generate_mfu"""
    stream_tokens_per_second: PositiveFloat = 30.0
    """Of one request to an endpoint, times its concurrency; not measured: it is yours"""
    judged_per_core: PositiveFloat = 25.0
    """Answers judged a second and core: 16 tests of 2.4 ms each, by bench_judge.py"""
