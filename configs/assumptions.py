"""What a plan takes for granted until the store holds a measurement; all of it is printed.

A figure that two CPU cores can give was measured there, by the script that its line names. What
needs a GPU or somebody's endpoint was not, and its line says so.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from configs.base import Settings

Share = Annotated[float, Field(gt=0, le=1)]
_STAGE = "rows a second, measured on one core (bench_data_stages.py)"


class Assumptions(Settings):
    """Counts, sizes and rates. One's own stand in a profile, or come from earlier results."""

    sft_prompts: Annotated[
        PositiveInt, Field(description="Prompts the teacher answers; 16 answers make 1.5 M (§3.1)")
    ] = 93_750
    rl_math_prompts: Annotated[
        PositiveInt, Field(description="Math prompts that pass the RL filter (§3.2.1)")
    ] = 88_000
    rl_code_prompts: Annotated[
        PositiveInt, Field(description="Code prompts that pass the RL filter (§3.2.1)")
    ] = 18_000
    rl_kept: Annotated[
        Share, Field(description="Share of the asked prompts that pass it; not in the paper")
    ] = 0.5
    source_rows: Annotated[
        PositiveInt, Field(description="Rows of a hub source that nobody has counted")
    ] = 200_000
    kept: Annotated[Share, Field(description="Share of rows that dedup, decontamination keep")] = (
        0.9
    )
    benchmark_problems: Annotated[
        PositiveInt, Field(description="Problems of a benchmark that nobody has counted")
    ] = 100
    prompt_tokens: Annotated[PositiveInt, Field(description="Mean tokens of a prompt")] = 300
    answer_tokens: Annotated[
        PositiveInt,
        Field(description="Mean tokens of a long-thinking answer, below max_tokens; neither in the "
              "paper nor measured, for no answers of R1 are at hand"),
    ] = 10_000  # fmt: skip
    train_mfu: Annotated[
        Share, Field(description="Training: share of the GPU's peak, at 6·N FLOPs a token")
    ] = 0.4
    forward_mfu: Annotated[
        Share, Field(description="Log-probabilities: share of the peak, at 2·N FLOPs a token")
    ] = 0.4
    generate_mfu: Annotated[
        Share, Field(description="Generation, bound by memory: the same, at 2·N FLOPs a token")
    ] = 0.05
    trained_per_gpu: Annotated[
        PositiveFloat | None,
        Field(description="Tokens trained on a second and GPU; takes the place of train_mfu"),
    ] = None
    generated_per_gpu: Annotated[
        PositiveFloat | None,
        Field(description="Tokens generated a second and GPU; takes the place of generate_mfu"),
    ] = None
    stream_tokens_per_second: Annotated[
        PositiveFloat, Field(description="Of one request to an endpoint, times its concurrency")
    ] = 30.0
    judged_per_core: Annotated[
        PositiveFloat,
        Field(
            description="Answers judged a second and core: 16 tests, measured: 2.4 ms each "
            "(bench_judge.py)"
        ),
    ] = 25.0
    collect_rate: Annotated[PositiveFloat, Field(description=f"collect: {_STAGE}")] = 37_000.0
    dedup_rate: Annotated[PositiveFloat, Field(description=f"dedup: {_STAGE}")] = 49_000.0
    decontaminate_rate: Annotated[
        PositiveFloat, Field(description=f"decontaminate: {_STAGE}")
    ] = 50_000.0  # fmt: skip
    difficulty_rate: Annotated[
        PositiveFloat, Field(description=f"difficulty, 4 answers to a problem: {_STAGE}")
    ] = 24_000.0
    select_rate: Annotated[
        PositiveFloat,
        Field(description=f"select, answers of 31,634 characters: {_STAGE}"),
    ] = 3_000.0
    filter_tests_rate: Annotated[
        PositiveFloat, Field(description=f"filter_tests: {_STAGE}")
    ] = 87_000.0  # fmt: skip
    filter_rl_rate: Annotated[
        PositiveFloat, Field(description=f"filter_rl, 16 answers to a problem: {_STAGE}")
    ] = 8_500.0
    rows_per_second: Annotated[
        PositiveFloat, Field(description="Answers a second of a scripted or recorded engine")
    ] = 20_000.0
    bytes_per_token: Annotated[
        PositiveFloat, Field(description="Of generated text on disk, as compressed parquet")
    ] = 1.5
    bytes_per_row: Annotated[
        PositiveFloat, Field(description="Of a problem on disk, as compressed parquet")
    ] = 1_000.0


_NO_GPU = "not measured, for no GPU was at hand"
UNMEASURED: Mapping[str, str] = {
    "train_mfu": f"{_NO_GPU}; Llama 3 reports 0.38 to 0.43 on H100 (arXiv 2407.21783, Table 4)",
    "forward_mfu": f"{_NO_GPU}; taken to be that of training",
    "generate_mfu": f"{_NO_GPU}; measure yours with vLLM's own benchmark: generated_per_gpu",
    "stream_tokens_per_second": "not measured: it is a property of the endpoint, which is yours",
}
"""Rates that this project could not measure, and why: a plan adds what half and double mean."""
