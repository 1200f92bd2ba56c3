"""Settings of the data stages (§3.1, §3.2.1). Defaults are the paper's; sections in comments."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from configs.base import Runtime, Settings
from configs.engines import EarlyStop, EngineSettings, Sampling
from configs.judging import JudgeSettings


class PartsRuntime(Runtime):
    """How work is cut into parts, which shows neither in the result nor in its key."""

    workers: Annotated[PositiveInt, Field(description="Processes that compute parts")] = 1
    rows_per_part: Annotated[
        PositiveInt, Field(description="Rows a part: what a kill loses, and what a worker holds")
    ] = 50_000


class DedupSettings(Settings):
    """Exact match removal of queries (§3.1); near-duplicates are an addition, off by default."""

    near: Annotated[bool, Field(description="Also drop near-duplicates (MinHash-LSH)")] = False
    jaccard: Annotated[
        float, Field(gt=0, le=1, description="Near: this similarity of word shingles, or more")
    ] = 0.7
    shingle: Annotated[PositiveInt, Field(description="Words a shingle")] = 5
    permutations: Annotated[int, Field(ge=2, description="Length of a MinHash signature")] = 128
    runtime: Annotated[PartsRuntime, Field(description="How it is computed; changes no result")] = (
        PartsRuntime()
    )


class DecontaminateSettings(Settings):
    """9-gram overlap with any benchmark item (§3.1, §3.2.1)."""

    n: Annotated[int, Field(ge=1, le=32, title="n-gram size", description="§3.1: 9")] = 9  # §3.1
    normalize: Annotated[
        Literal["alnum", "whitespace"],
        Field(description="whitespace: the published rule; alnum: also finds other typesetting"),
    ] = "alnum"
    min_coverage: Annotated[
        float,
        Field(ge=0, le=1, description="Remove only if this share of the item's n-grams is shared"),
    ] = 0.0  # the paper's rule: one shared n-gram removes
    runtime: Annotated[PartsRuntime, Field(description="How it is computed; changes no result")] = (
        PartsRuntime()
    )


class SampleSettings(Settings):
    """Answers of the teacher (§3.1: R1-0528) or of the RL curator (§3.2.1: R1-0120)."""

    sources: Annotated[tuple[str, ...], Field(description="Only these sources; empty: all")] = ()
    samples_per_prompt: Annotated[
        PositiveInt, Field(title="Samples per prompt", description="§3.1: up to 16")
    ] = 16  # §3.1
    engine: Annotated[EngineSettings, Field(description="Who answers")]
    sampling: Annotated[Sampling, Field(description="How answers are drawn")] = Sampling()
    early_stop: Annotated[
        EarlyStop | None,
        Field(description="Stop asking once a prompt has enough right answers; empty: never"),
    ] = None


class DifficultySettings(Settings):
    """Pass rate of a rater model per prompt (§3.1: Qwen3-8B) → easy or hard."""

    rater: Annotated[
        Literal["model", "teacher", "source"],
        Field(
            description="model: `rate` samples its own answers; teacher: reuse the teacher's; "
            "source: what a problem's source is known to be"
        ),
    ] = "model"
    easy_above: Annotated[float, Field(ge=0, le=1, description="Easy: pass rate above this")] = 0.5
    easy_sources: Annotated[
        tuple[str, ...], Field(description="Known to be easy (rater: source)")
    ] = ()
    hard_sources: Annotated[
        tuple[str, ...], Field(description="Known to be hard (rater: source)")
    ] = ()

    @model_validator(mode="after")
    def sources_are_named_where_they_decide(self) -> Self:
        if (self.rater == "source") != bool(self.easy_sources or self.hard_sources):
            raise ValueError(
                "difficulty: rater source goes together with easy_sources and hard_sources"
            )
        if both := set(self.easy_sources) & set(self.hard_sources):
            raise ValueError(f"difficulty: {min(both)!r} is named both easy and hard")
        return self


class EmbeddingRuntime(Runtime):
    """How prompts are embedded by a model."""

    batch_size: Annotated[PositiveInt, Field(title="Prompts a batch (transformers)")] = 64
    dtype: Annotated[
        Literal["auto", "bfloat16", "float32"], Field(description="Of the embedding model")
    ] = "auto"


class EmbeddingSettings(Settings):
    """What K-Center-Greedy measures the distance of prompts by; the paper does not say."""

    kind: Annotated[
        Literal["tfidf_svd", "transformers"],
        Field(
            title="Embedding",
            description="tfidf_svd: of words, nothing to download; transformers: a model's last "
            "hidden states, averaged over the prompt",
        ),
    ] = "tfidf_svd"
    dimensions: Annotated[PositiveInt, Field(description="Of the vectors (tfidf_svd)")] = 256
    model: Annotated[str, Field(description="Folder or Hugging Face id (transformers)")] = ""
    revision: Annotated[str, Field(description="Commit of the model (transformers)")] = "main"
    max_tokens: Annotated[
        PositiveInt, Field(description="Longer prompts are cut (transformers)")
    ] = 512
    runtime: Annotated[
        EmbeddingRuntime, Field(description="How it is computed; changes no result")
    ] = EmbeddingRuntime()

    @model_validator(mode="after")
    def a_model_is_named(self) -> Self:
        if (self.kind == "transformers") != bool(self.model):
            raise ValueError("embedding: kind transformers and model go together")
        return self


class SelectSettings(Settings):
    """The SFT mixture (§3.1, §5.1). The paper keeps all responses, right or wrong (§5.1.1)."""

    correctness: Annotated[
        Literal["mixed", "only_true"], Field(description="Table 2: keep wrong answers or not")
    ] = "mixed"
    difficulty: Annotated[
        Literal["all", "easy", "hard"],
        Field(description="Table 2: strata by the rater's pass rate, or by source"),
    ] = "all"
    math_sources: Annotated[
        tuple[str, ...],
        Field(description="Only these, best first; with top_k_sources: Table 4; empty: all"),
    ] = ()
    code_sources: Annotated[
        tuple[str, ...],
        Field(description="Only these, best first; with top_k_sources: Table 5; empty: all"),
    ] = ()
    top_k_sources: Annotated[
        int | None,
        Field(
            ge=1,
            description="The first K of the ranked sources of each domain; ranked by math_sources "
            "and code_sources, or where they are empty by the `rank` of the sources; those of "
            "equal rank count as one",
        ),
    ] = None
    size: Annotated[
        int | None,
        Field(ge=1, description="Subset size, K-Center-Greedy (Tables 4-5: 31,600)"),
    ] = None
    balanced: Annotated[bool, Field(description="Equal shares of what balance_by names")] = False
    balance_by: Annotated[
        Literal["domain", "label", "source"], Field(description="label: easy, hard and unrated")
    ] = "domain"
    embedding: Annotated[EmbeddingSettings, Field(description="For size: what distance means")] = (
        EmbeddingSettings()
    )
    max_chars: Annotated[
        int | None, Field(ge=1, description="Drop longer answers before training")
    ] = None
    require_think: Annotated[
        bool, Field(description="Off: answers written by people, without thinking, may pass")
    ] = True


class FilterTestsSettings(Settings):
    """Code problems with too few distinct tests invite false positives (§3.2.1)."""

    sources: Annotated[tuple[str, ...], Field(description="Only these sources; empty: all")] = ()
    min_tests: Annotated[
        PositiveInt, Field(description="Distinct tests a code problem must have; §3.2.1: 16")
    ] = 16  # §3.2.1


class FilterRLSettings(Settings):
    """pass@16 filter (§3.2.1), read as the share of the 16 completions that pass."""

    code_threshold: Annotated[
        float,
        Field(ge=0, le=1, description="Share of the 16 completions that must pass; §3.2.1: 0.5"),
    ] = 0.5  # §3.2.1
    code_inclusive: Annotated[
        bool, Field(description="§3.2.1 says above 0.5; the caption of Fig. 4 says at least")
    ] = False
    math_threshold: Annotated[
        float,
        Field(ge=0, le=1, description="Share that must agree with the gold; §3.2.1: a majority"),
    ] = 0.5  # §3.2.1: a majority
    min_scored: Annotated[
        float,
        Field(gt=0, le=1, description="Reject a prompt with fewer scored samples"),
    ] = 0.5


class JudgeStageSettings(Settings):
    judge: Annotated[JudgeSettings, Field(description="How answers are judged")] = JudgeSettings()
