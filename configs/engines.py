"""Settings of the engines that answer prompts: teachers, raters and our own checkpoints."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from configs.base import HOW, Runtime, Settings
from configs.judging import JudgeSettings


def url_without_secret(name: str, url: str, instead: str) -> str:
    """`url` itself; it is in manifests, logs and MLflow: a password or key there is public.

    Raises ValueError, with `instead` as the way out, without repeating the secret.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ValueError(f"{name} must hold no user, password or query: {instead}")
    if url and parts.scheme not in ("http", "https"):
        raise ValueError(f"{name}={url} must start with http:// or https://")
    return url


class EngineRuntime(Runtime):
    """How samples are computed; changes no sample's meaning."""

    concurrency: Annotated[
        PositiveInt,
        Field(
            title="Requests in flight (endpoint)",
            description="Fewer are asked while the endpoint refuses",
        ),
    ] = 64
    request_timeout_s: Annotated[
        PositiveFloat, Field(description="One attempt, from its start to its end (endpoint)")
    ] = 7200.0
    silence_timeout_s: Annotated[
        PositiveFloat,
        Field(description="Longest silence, before the first token too (endpoint that streams)"),
    ] = 600.0
    stream: Annotated[
        bool,
        Field(description="Take answers as they are written: gateways cut silent connections"),
    ] = True
    max_retries: Annotated[
        int, Field(ge=0, description="Of one request, after the first attempt")
    ] = 8
    batch_size: Annotated[
        PositiveInt,
        Field(
            title="Sequences a batch (transformers)",
            description="Above temperature 0 another size draws other answers, equally likely",
        ),
    ] = 256
    tensor_parallel: Annotated[PositiveInt, Field(description="GPUs a layer (vllm)")] = 1
    pipeline_parallel: Annotated[PositiveInt, Field(description="Groups of layers (vllm)")] = 1
    data_parallel: Annotated[
        PositiveInt,
        Field(description="Copies of the model, each with its own GPUs and share of the work"),
    ] = 1
    gpu_memory_utilization: Annotated[
        float, Field(gt=0, le=1, description="Share of a GPU's memory (vllm)")
    ] = 0.9
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"],
        Field(description="Of the weights (vllm, transformers)"),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Field(
            ge=1,
            description="Memory for this many tokens of prompt and answer; an answer that may "
            "need more is refused, not cut; default: the model's (vllm)",
        ),
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
    approve_above: Annotated[
        float | None,
        Field(ge=0, description="Cost at these prices that a person must approve; empty: none"),
    ] = None
    pilot_prompts: Annotated[
        PositiveInt,
        Field(description="Prompts answered first, to estimate the cost; their answers count"),
    ] = 20
    approved_cost: Annotated[float, Field(ge=0, description="What a person approved")] = 0.0


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
    revision: Annotated[str, Field(description="Branch, tag or commit on the hub")] = "main"
    base_url: Annotated[str, HOW, Field(title="Endpoint URL (openai)")] = ""
    served_model: Annotated[
        str, HOW, Field(description="Name the endpoint answers under, if not `model` (openai)")
    ] = ""
    api_key_env: Annotated[
        str,
        HOW,
        Field(description="Environment variable that holds the key; empty: no key (openai)"),
    ] = "OPENAI_API_KEY"
    api_key_block: Annotated[
        str,
        HOW,
        Field(description="Prefect Secret block that holds the key; goes before api_key_env"),
    ] = ""
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
    model_field: Annotated[str, Field(description="Who answered, of a recorded row")] = "model"
    grade_field: Annotated[str, Field(description="Published grade, compared with our judge")] = ""
    think_tags: Annotated[
        tuple[str, str] | None,
        Field(description="Tags the recorded text uses around its thinking, if not <think>"),
    ] = None
    solution_tags: Annotated[
        tuple[str, str] | None, Field(description="Tags the recorded text uses around its solution")
    ] = None
    error_rate: Annotated[float, Field(ge=0, le=1, title="Arithmetic slips (scripted)")] = 0.01
    source_error_rates: Annotated[
        dict[str, Annotated[float, Field(ge=0, le=1)]],
        Field(description="Arithmetic slips on the problems of single sources (scripted)"),
    ] = Field(default_factory=dict)
    give_up_rate: Annotated[float, Field(ge=0, le=1, title="Gives up per line (scripted)")] = 0.12
    brief_rate: Annotated[float, Field(ge=0, le=1, title="Answers without search (scripted)")] = 0.5
    code_brief_rate: Annotated[
        float | None, Field(ge=0, le=1, description="The same on code; default: brief_rate")
    ] = None
    guidance: Annotated[float, Field(ge=0, title="How well the search is ordered (scripted)")] = 0.5
    max_lines: Annotated[PositiveInt, Field(title="Longest search (scripted)")] = 10
    runtime: Annotated[
        EngineRuntime, Field(description="How it is computed; changes no result")
    ] = EngineRuntime()

    @model_validator(mode="after")
    def the_engine_has_what_it_needs(self) -> Self:
        needs = {"openai": ("model", "base_url"), "vllm": ("model",), "transformers": ("model",),
                 "recorded": ("files",), "scripted": ()}[self.kind]  # fmt: skip
        for name in needs:
            if not getattr(self, name):
                raise ValueError(f"engine kind={self.kind} needs {name}")
        return self

    @field_validator("base_url")
    @classmethod
    def _no_secret_in_the_url(cls, url: str) -> str:
        return url_without_secret(
            "base_url",
            url,
            "put the key into an environment variable (api_key_env) or a Prefect Secret block "
            "(api_key_block)",
        )


class Sampling(Settings):
    """One sampling protocol; every score carries it."""

    temperature: Annotated[float, Field(ge=0, description="Table 1: 0.6")] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1, description="Table 1: 0.95")] = 0.95
    max_tokens: Annotated[PositiveInt, Field(title="Longest answer, tokens")] = 32_768
    top_k: Annotated[
        int | None, Field(ge=1, description="Off; the authors' script has 20, their paper none")
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Field(gt=0, description="Off; the authors' script has 1.05, their paper none"),
    ] = None


class EarlyStop(Settings):
    """Ask no further samples of a prompt that has enough right answers (not in the paper).

    Answers are asked in rounds and judged in between, so that which samples exist depends on the
    answers alone, not on which came first.
    """

    right: Annotated[PositiveInt, Field(description="Right answers that are enough")] = 1
    at_once: Annotated[PositiveInt, Field(description="Samples a prompt and round")] = 4
    judge: Annotated[JudgeSettings, Field(description="What a right answer is")] = JudgeSettings()
