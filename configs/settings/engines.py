"""Settings of the engines that answer prompts: teachers, raters and our own checkpoints."""

from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from .base import (
    IN_KEY,
    NOT_IN_KEY,
    ChatTemplateKwargs,
    Price,
    Runtime,
    Settings,
    Share,
    read_catalogue,
)

Parameter = Literal["max_tokens", "temperature", "top_p", "seed", "top_k", "repetition_penalty",
                    "stream", "stream_options"]  # fmt: skip
"""Of a request to an endpoint, beside its model and messages."""
OMIT = "omit"
MOST_REQUESTS = 1_024
"""In flight, where nobody set a number: more answers than one process reads as they stream."""


def url_without_secret(url: str, instead: str) -> str:
    """`url` itself, which manifests and logs show. Raises ValueError for a secret in it, unnamed,
    with `instead` as the way out."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ValueError(f"must hold no user, password or query: {instead}")
    if url and parts.scheme not in ("http", "https"):
        raise ValueError(f"{url} must start with http:// or https://")
    return url


def no_secret(instead: str) -> AfterValidator:
    """Annotated mark of an address that everybody may read."""
    return AfterValidator(partial(url_without_secret, instead=instead))


class EngineRuntime(Runtime):
    """How samples are computed; changes no sample's meaning."""

    concurrency: PositiveInt | None = None
    """Most requests in flight; empty: up to 1,024. As many are as the endpoint sustains: more while
    that brings more tokens a second, fewer when it refuses (endpoint)"""
    silence_timeout_s: PositiveFloat = 600.0
    """Longest silence, before the first token too (endpoint)"""
    max_retries: NonNegativeInt = 20
    """Of one request; and refusals for overload in a row, none before its Retry-After (endpoint)"""
    batch_size: PositiveInt = 256
    """Sequences a batch (transformers): above temperature 0 another size draws other answers"""
    tensor_parallel: PositiveInt = 1
    """GPUs a layer (vllm)"""
    data_parallel: PositiveInt = 1
    """Copies of the model, each with its own GPUs (vllm)"""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of a GPU's memory (vllm)"""
    dtype: Annotated[Literal["auto", "bfloat16", "float32"], IN_KEY] = "auto"
    """Of the weights (vllm, transformers)"""
    max_model_len: PositiveInt | None = None
    """Tokens of prompt and answer; what may need more is refused; default: the model's (vllm)"""
    input_price: Price | None = None
    """Per million prompt tokens; without both prices, those of the catalogue for base_url's host"""
    output_price: Price | None = None
    """Per million answer tokens"""
    approve_above: Price | None = None
    """Cost at these prices that a person must approve; empty: none"""
    approved_cost: Price = 0.0
    """What a person approved"""

    request_timeout_s: ClassVar = 7200.0  # one attempt at an endpoint, from start to end


class Prices(NamedTuple):
    """Money per million tokens of prompts and of answers."""

    input: float
    output: float
    source: str
    """Whose figures these are, and of when; empty: the settings'."""


class EngineSettings(Settings):
    """Which engine answers, with which model."""

    kind: Literal["openai", "vllm", "transformers", "scripted", "recorded"] = "openai"
    """openai: any OpenAI-compatible endpoint; vllm, transformers: local; scripted: the teacher of
    the generated families; recorded: samples from files"""
    model: str = ""
    """Model name or checkpoint"""
    revision: str = "main"
    """Branch, tag or commit on the hub"""
    base_url: Annotated[str, NOT_IN_KEY, no_secret("api_key_env names the key")] = ""
    """Of the endpoint (openai)"""
    served_model: Annotated[str, NOT_IN_KEY] = ""
    """Name the endpoint answers under, if not `model` (openai)"""
    api_key_env: Annotated[str, NOT_IN_KEY] = "OPENAI_API_KEY"
    """Environment variable that holds the key; empty: no key (openai)"""
    api_key_block: Annotated[str, NOT_IN_KEY] = ""
    """Prefect Secret block that holds the key; goes before api_key_env"""
    parameters: dict[Parameter, str] = Field(default={})
    """Parameters that the endpoint takes under another name, as
    {max_tokens: max_completion_tokens}, or not at all, as {temperature: omit} (openai)"""
    think_prefill: str = ""
    """What the chat template puts before the answer; judged with it"""
    chat_template_kwargs: ChatTemplateKwargs = None
    """Arguments of the chat template: {enable_thinking: false}; empty: those of the checkpoint"""
    yarn_factor: Annotated[float, Field(gt=1)] | None = None
    """YaRN factor of the context (local engines)"""
    origin: Literal["files", "catalogue"] = Field(default="files", alias="from")
    """Where recorded samples are: in `files`, or in rows of sources with trace_fields"""
    files: tuple[str, ...] = ()
    """Recorded samples: JSONL, JSON (both also .gz) or parquet; globs"""
    prompt_field: str = "question"
    """Prompt of a recorded row; `a|b`: the first that the row has"""
    text_field: str = "response"
    """Answer of a recorded row; `a|b`: the first that the row has"""
    grade_field: str = ""
    """Published grade, compared with our judge"""
    think_tags: tuple[str, str] | None = None
    """Tags around thinking, if not <think>, as ["<seed:think>", "</seed:think>"]"""
    solution_tags: tuple[str, str] | None = None
    """Tags around the solution, which are taken away (recorded, openai)"""
    error_rate: Share = 0.01
    """Arithmetic slips (scripted)"""
    source_error_rates: dict[str, Share] = Field(default_factory=dict)
    """Arithmetic slips on the problems of single sources (scripted)"""
    give_up_rate: Share = 0.12
    """Gives up, per line (scripted)"""
    brief_rate: Share = 0.5
    """Answers without search (scripted)"""
    code_brief_rate: Share | None = None
    """The same on code; default: brief_rate"""
    guidance: NonNegativeFloat = 0.5
    """How well the search is ordered (scripted)"""
    max_lines: PositiveInt = 10
    """Longest search (scripted)"""
    runtime: EngineRuntime = EngineRuntime()

    model_config = ConfigDict(
        serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )
    model_field: ClassVar = "model"  # who answered, of a recorded row

    @property
    def prices(self) -> Prices | None:
        """What tokens cost: by the settings, else by `configs/catalogue/prices.toml`, or None."""
        runtime = self.runtime
        if runtime.input_price is not None or runtime.output_price is not None:
            return Prices(runtime.input_price or 0.0, runtime.output_price or 0.0, "")
        listed, host = read_catalogue("prices"), urlsplit(self.base_url).hostname or ""
        for pattern, models in listed["hosts"].items():
            for name, price in models.items() if fnmatchcase(host, pattern) else ():
                if name.lower() in (self.model.lower(), self.served_model.lower()):
                    source = f"{listed['currency']}, {name} at {host}, {listed['date']}"
                    return Prices(price["input"], price["output"], source)
        return None

    @model_validator(mode="after")
    def the_engine_has_what_it_needs(self) -> Self:
        needs = {"scripted": (), "recorded": ("files",), "openai": ("model", "base_url")}
        if self.origin == "catalogue":
            if self.kind != "recorded" or self.files:
                raise ValueError("engine from=catalogue goes with kind=recorded, without files")
            needs["recorded"] = ()
        for name in needs.get(self.kind, ("model",)):
            if not getattr(self, name):
                raise ValueError(f"engine kind={self.kind} needs {name}")
        return self


class Sampling(Settings):
    """One sampling protocol; every score carries it."""

    temperature: NonNegativeFloat = 0.6
    """Table 1: 0.6"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Table 1: 0.95"""
    max_tokens: PositiveInt = 32_768
    """Longest answer, tokens"""
    top_k: PositiveInt | None = None
    """Off; the authors' script has 20, their paper none"""
    repetition_penalty: PositiveFloat | None = None
    """Off; the authors' script has 1.05, their paper none"""
