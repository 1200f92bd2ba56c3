"""Settings of the data stages (§3.1, §3.2.1). Defaults are the paper's."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from .base import NOT_IN_KEY, Settings, Share, Workers
from .engines import EngineSettings, Sampling, no_secret

HASHING = "hashing"  # The encoder that needs no model.


class PartsRuntime(Workers):
    """How work is cut into parts, which does not show in the result."""

    rows_per_part: PositiveInt = 50_000
    """Rows a part: what a kill loses, and what a worker holds"""


class DedupSettings(Settings):
    """Exact match removal of queries (§3.1); near-duplicates are an addition, off by default."""

    near: bool = False
    """Also drop near-duplicates (MinHash-LSH)"""
    jaccard: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Near: this similarity of word shingles, or more"""
    runtime: PartsRuntime = PartsRuntime()

    shingle: ClassVar = 5  # words
    permutations: ClassVar = 128  # of a MinHash signature


class DecontaminateSettings(Settings):
    """9-gram overlap with any benchmark item (§3.1, §3.2.1)."""

    n: Annotated[int, Field(ge=1, le=32)] = 9
    """Words an n-gram; §3.1: 9"""
    normalize: Literal["alnum", "whitespace"] = "alnum"
    """whitespace: the published rule; alnum: also finds other typesetting"""
    min_coverage: Share = 0.0
    """Remove only if this share of the item's n-grams is shared; §3.1: one n-gram removes"""
    min_words: PositiveInt = 1
    """Items of fewer words match nothing: "Prove your answer." stands in many an unrelated row"""
    runtime: PartsRuntime = PartsRuntime()


class NearMissSettings(Settings):
    """Rows whose embedding is near a benchmark item's, which n-grams need not find."""

    cosine: Annotated[float, Field(gt=0, le=1)]
    """This cosine of row and item, or more"""
    model: str = HASHING
    """hashing: built in; or an encoder's folder or hub id (also id@commit); or of the endpoint"""
    base_url: Annotated[str, NOT_IN_KEY, no_secret("OPENAI_API_KEY holds the key")] = ""
    """Of an endpoint with /v1/embeddings"""
    runtime: PartsRuntime = PartsRuntime(rows_per_part=4096)


class SampleSettings(Settings):
    """Answers of the teacher (§3.1: R1-0528) or of the RL curator (§3.2.1: R1-0120)."""

    sources: tuple[str, ...] = ()
    """Only these sources; empty: all"""
    samples_per_prompt: PositiveInt = 16
    """§3.1: up to 16"""
    engine: EngineSettings
    """Who answers"""
    fallback: EngineSettings | None = None
    """Who answers prompts without a published answer (engine from: catalogue); empty: nobody"""
    sampling: Sampling = Sampling()
    """How answers are drawn"""

    @model_validator(mode="after")
    def a_fallback_has_something_to_fall_back_from(self) -> Self:
        if self.fallback and self.engine.origin != "catalogue":
            raise ValueError("fallback needs engine={kind: recorded, from: catalogue}")
        return self


class DifficultySettings(Settings):
    """Pass rate of a rater model per prompt (§3.1: Qwen3-8B) → easy or hard."""

    rater: Literal["model", "teacher", "source", "published"] = "model"
    """model: `rate` samples its own answers; teacher: reuse the teacher's; source: by source;
    published: pass rates that rows bring, not measured here"""
    easy_sources: tuple[str, ...] = ()
    """Known to be easy (rater: source)"""
    hard_sources: tuple[str, ...] = ()
    """Known to be hard (rater: source)"""

    easy_above: ClassVar = 0.5  # easy: a pass rate above this

    @model_validator(mode="after")
    def sources_are_named_where_they_decide(self) -> Self:
        if (self.rater == "source") != bool(self.easy_sources or self.hard_sources):
            needed = "easy_sources and hard_sources"
            raise ValueError(f"difficulty: rater source goes together with {needed}")
        if both := set(self.easy_sources) & set(self.hard_sources):
            raise ValueError(f"difficulty: {min(both)!r} is named both easy and hard")
        return self


class SelectSettings(Settings):
    """The SFT mixture (§3.1, §5.1). The paper keeps all responses, right or wrong (§5.1.1)."""

    correctness: Literal["mixed", "only_true"] = "mixed"
    """Table 2: keep wrong answers or not"""
    difficulty: Literal["all", "easy", "hard"] = "all"
    """Table 2: strata by the rater's pass rate, or by source"""
    math_sources: tuple[str, ...] = ()
    """Only these, best first; with top_k_sources: Table 4; empty: all"""
    code_sources: tuple[str, ...] = ()
    """Only these, best first; with top_k_sources: Table 5; empty: all"""
    top_k_sources: PositiveInt | None = None
    """The first K of math_sources and of code_sources"""
    size: PositiveInt | None = None
    """Subset size, K-Center-Greedy (Tables 4-5: 31,600)"""
    balanced: bool = False
    """Equal shares of math and code"""
    require_think: bool = True
    """Off: answers written by people, without thinking, may pass"""

    dimensions: ClassVar = 256  # of K-Center's points, by TF-IDF and SVD; the paper does not say

    @model_validator(mode="after")
    def the_first_are_those_of_a_list(self) -> Self:
        if self.top_k_sources and not (self.math_sources or self.code_sources):
            raise ValueError("top_k_sources needs a ranking: set math_sources or code_sources")
        return self


class FilterTestsSettings(Settings):
    """Code problems with too few distinct tests invite false positives (§3.2.1)."""

    sources: tuple[str, ...] = ()
    """Only these sources; empty: all"""
    min_tests: PositiveInt = 16
    """Distinct tests a code problem must have; §3.2.1: 16"""


class FilterRLSettings(Settings):
    """pass@16 filter (§3.2.1), read as the share of the 16 completions that pass."""

    code_threshold: Share = 0.5
    """Share of the 16 completions that must pass; §3.2.1: 0.5"""
    code_inclusive: bool = False
    """Keep code at the threshold too, as the caption of Fig. 4; §3.2.1: only above it"""
    guessing: Share = 0.02
    """Of yes/no, true/false and choices keep those that guessing passes as often with at most this
    probability: yes/no from 13 of 16 on (binomial tail 0.011; of the majority, 9, it is 0.40), one
    of four choices from 9 of 16 on (0.0075), as the majority anyway; 1: as the paper, all"""
    pass_rates: Literal["sampled", "published"] = "sampled"
    """published: those that rows bring, not measured here; problems without one are rejected"""

    math_threshold: ClassVar = 0.5  # share that must agree with the gold; §3.2.1: a majority
    min_scored: ClassVar = 0.5  # a prompt with fewer scored samples is rejected
