"""Settings of the engines that answer prompts: teachers, raters and our own checkpoints."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from configs.base import Runtime, Settings


class EngineRuntime(Runtime):
    """How samples are computed; changes no sample's meaning."""

    concurrency: Annotated[PositiveInt, Field(title="Requests in flight (endpoint)")] = 64
    request_timeout_s: PositiveFloat = 1800.0
    max_retries: Annotated[int, Field(ge=0)] = 8
    batch_size: Annotated[PositiveInt, Field(title="Sequences a batch (transformers)")] = 256
    tensor_parallel: PositiveInt = 1
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    max_model_len: Annotated[
        int | None,
        Field(ge=1, description="Prompt and answer, tokens; default: the model's (vllm)"),
    ] = None
    failures_in_a_row: Annotated[
        PositiveInt,
        Field(description="This many failed requests in a row end the stage (endpoint)"),
    ] = 16
    input_price: Annotated[
        float | None, Field(ge=0, description="Per million prompt tokens: the cost is reported")
    ] = None
    output_price: Annotated[float | None, Field(ge=0, description="Per million answer tokens")] = (
        None
    )


class EngineSettings(Settings):
    """Which engine answers, with which model."""

    kind: Annotated[
        Literal["openai", "vllm", "transformers", "scripted", "recorded"],
        Field(
            title="Engine",
            description="openai: any OpenAI-compatible endpoint; vllm, transformers: local; "
            "scripted: the teacher of the generated families; recorded: samples from files",
        ),
    ] = "openai"
    model: Annotated[str, Field(title="Model name or checkpoint")] = ""
    revision: str = "main"
    base_url: Annotated[str, Field(title="Endpoint URL (openai)")] = ""
    api_key_env: Annotated[
        str, Field(description="Name of the environment variable that holds the key")
    ] = "OPENAI_API_KEY"
    think_prefill: Annotated[
        str, Field(description="What the chat template puts before the answer; judged with it")
    ] = ""
    yarn_factor: Annotated[
        float | None, Field(gt=1, description="YaRN factor of the context (local engines)")
    ] = None
    files: Annotated[
        tuple[str, ...],
        Field(description="Recorded samples: JSONL, JSON (both also .gz) or parquet; globs"),
    ] = ()
    prompt_field: Annotated[
        str, Field(description="Prompt of a recorded row; `a|b`: the first that the row has")
    ] = "question"
    text_field: Annotated[
        str, Field(description="Answer of a recorded row; `a|b`: the first that the row has")
    ] = "response"
    model_field: str = "model"
    grade_field: Annotated[str, Field(description="Published grade, compared with our judge")] = ""
    think_tags: Annotated[
        tuple[str, str] | None,
        Field(description="Tags the recorded text uses around its thinking, if not <think>"),
    ] = None
    solution_tags: Annotated[
        tuple[str, str] | None, Field(description="Tags the recorded text uses around its solution")
    ] = None
    error_rate: Annotated[float, Field(ge=0, le=1, title="Arithmetic slips (scripted)")] = 0.01
    give_up_rate: Annotated[float, Field(ge=0, le=1, title="Gives up per line (scripted)")] = 0.12
    brief_rate: Annotated[float, Field(ge=0, le=1, title="Answers without search (scripted)")] = 0.5
    code_brief_rate: Annotated[
        float | None, Field(ge=0, le=1, description="The same on code; default: brief_rate")
    ] = None
    guidance: Annotated[float, Field(ge=0, title="How well the search is ordered (scripted)")] = 0.5
    max_lines: Annotated[PositiveInt, Field(title="Longest search (scripted)")] = 10
    runtime: EngineRuntime = EngineRuntime()

    @model_validator(mode="after")
    def the_engine_has_what_it_needs(self) -> Self:
        needs = {"openai": ("model", "base_url"), "vllm": ("model",), "transformers": ("model",),
                 "recorded": ("files",), "scripted": ()}[self.kind]  # fmt: skip
        for name in needs:
            if not getattr(self, name):
                raise ValueError(f"engine kind={self.kind} needs {name}")
        return self


class Sampling(Settings):
    """One sampling protocol; every score carries it."""

    temperature: Annotated[float, Field(ge=0)] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    max_tokens: Annotated[PositiveInt, Field(title="Longest answer, tokens")] = 32_768
