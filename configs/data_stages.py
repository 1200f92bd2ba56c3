"""Settings of the data stages (§3.1, §3.2.1). Defaults are the paper's; sections in comments."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from configs.base import Settings
from configs.engines import EngineSettings, Sampling
from configs.judging import JudgeSettings


class Source(Settings):
    """One place problems come from: a Hugging Face dataset, local files, or a generated family."""

    name: str
    domain: Literal["math", "code"] = "math"
    kind: Literal["hub", "files", "generated"] = "files"
    dataset: Annotated[str, Field(description="Hugging Face dataset id (hub)")] = ""
    config: Annotated[str, Field(description="Configuration of the dataset (hub)")] = ""
    revision: Annotated[str, Field(description="Commit of the dataset (hub)")] = "main"
    split: str = "train"
    files: Annotated[
        tuple[str, ...],
        Field(
            description="JSONL, JSON (both also .gz) or parquet; globs; relative to root (files)"
        ),
    ] = ()
    prompt_field: Annotated[
        str, Field(description="Text or chat messages; a dot reaches into an object")
    ] = "problem"
    answer_field: str = "answer"
    answer_in_box: Annotated[
        bool, Field(description="The answer is the last \\boxed{} of answer_field")
    ] = False
    tests_field: Annotated[
        str,
        Field(
            description="Field that holds the tests; empty: none (only to decontaminate against)"
        ),
    ] = "tests"
    fn_name_field: Annotated[
        str, Field(description="Field that names the function to call, if the tests do not")
    ] = ""
    time_limit_s: Annotated[
        float, Field(gt=0, description="Per test, where the tests name no limit")
    ] = 6.0
    memory_mb: Annotated[int, Field(ge=16, description="Where the tests name no limit")] = 1024
    date_field: str = ""
    family: Annotated[
        Literal["countdown", "by_example"] | None, Field(description="Generated family")
    ] = None
    size: Annotated[PositiveInt, Field(description="Problems to generate")] = 100
    split_part: Annotated[
        Literal["train", "test"], Field(description="Side of the family's hash split (generated)")
    ] = "train"
    fixed_seed: Annotated[
        int | None, Field(description="Ignore the run's seed: benchmarks stay the same")
    ] = None
    duplicate_share: Annotated[
        float, Field(ge=0, lt=1, description="Planted duplicates (generated)")
    ] = 0.0
    contaminated_share: Annotated[
        float, Field(ge=0, lt=1, description="Planted benchmark problems (generated)")
    ] = 0.0
    contaminated_seed: Annotated[
        int, Field(description="fixed_seed of the benchmark whose problems are planted (generated)")
    ] = 0
    few_tests_share: Annotated[
        float, Field(ge=0, le=1, description="Problems with under 16 tests (by_example)")
    ] = 0.0
    difficulty: Annotated[
        int | None, Field(ge=4, description="Largest number; default: the family's (generated)")
    ] = None
    limit: Annotated[int | None, Field(ge=1, description="Keep the first N rows")] = None

    @model_validator(mode="after")
    def the_source_is_complete(self) -> Self:
        missing = {
            "hub": "" if self.dataset else "dataset",
            "files": "" if self.files else "files",
            "generated": "" if self.family else "family",
        }[self.kind]
        if missing:
            raise ValueError(f"source {self.name!r} of kind {self.kind} needs {missing}")
        if self.duplicate_share + self.contaminated_share >= 1:
            raise ValueError(
                f"source {self.name!r}: duplicate_share and contaminated_share leave no room for "
                "ordinary problems; their sum must stay below 1"
            )
        return self


class CollectSettings(Settings):
    root: Annotated[str, Field(description="Folder that relative file names start from")] = "."
    sources: tuple[Source, ...] = ()

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [s.name for s in self.sources]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two sources are called {twice[0]!r}; names must be unique")
        return self


class DedupSettings(Settings):
    """Exact match removal of queries (§3.1); near-duplicates are an addition, off by default."""

    near: Annotated[bool, Field(description="Also drop near-duplicates (MinHash-LSH)")] = False
    jaccard: Annotated[
        float, Field(gt=0, le=1, description="Near: this similarity of word shingles, or more")
    ] = 0.7
    shingle: Annotated[PositiveInt, Field(description="Words a shingle")] = 5
    permutations: Annotated[int, Field(ge=2, description="Length of a MinHash signature")] = 128


class DecontaminateSettings(Settings):
    """9-gram overlap with any benchmark item (§3.1, §3.2.1)."""

    n: Annotated[int, Field(ge=1, le=32, title="n-gram size")] = 9  # §3.1
    normalize: Annotated[
        Literal["alnum", "whitespace"],
        Field(description="whitespace: the published rule; alnum: also finds other typesetting"),
    ] = "alnum"
    min_coverage: Annotated[
        float,
        Field(ge=0, le=1, description="Remove only if this share of the item's n-grams is shared"),
    ] = 0.0  # the paper's rule: one shared n-gram removes


class SampleSettings(Settings):
    """Answers of the teacher (§3.1: R1-0528) or of the RL curator (§3.2.1: R1-0120)."""

    sources: Annotated[tuple[str, ...], Field(description="Only these sources; empty: all")] = ()
    samples_per_prompt: Annotated[PositiveInt, Field(title="Samples per prompt")] = 16  # §3.1
    engine: EngineSettings
    sampling: Sampling = Sampling()


class DifficultySettings(Settings):
    """Pass rate of a rater model per prompt (§3.1: Qwen3-8B) → easy or hard."""

    rater: Annotated[
        Literal["model", "teacher"],
        Field(description="model: `rate` samples its own answers; teacher: reuse the teacher's"),
    ] = "model"
    easy_above: Annotated[float, Field(ge=0, le=1, description="Easy: pass rate above this")] = 0.5


class SelectSettings(Settings):
    """The SFT mixture (§3.1, §5.1). The paper keeps all responses, right or wrong (§5.1.1)."""

    correctness: Annotated[
        Literal["mixed", "only_true"], Field(description="Table 2: keep wrong answers or not")
    ] = "mixed"
    difficulty: Literal["all", "easy", "hard"] = "all"
    math_sources: Annotated[
        tuple[str, ...],
        Field(description="Only these, best first; with top_k_sources: Table 4; empty: all"),
    ] = ()
    code_sources: Annotated[
        tuple[str, ...],
        Field(description="Only these, best first; with top_k_sources: Table 5; empty: all"),
    ] = ()
    top_k_sources: Annotated[
        int | None, Field(ge=1, description="The first K of the ranked sources of each domain")
    ] = None
    size: Annotated[
        int | None,
        Field(ge=1, description="Subset size, K-Center-Greedy (Tables 4-5: 31,600)"),
    ] = None
    balanced: Annotated[bool, Field(description="Equal shares of each domain")] = False
    max_chars: Annotated[
        int | None, Field(ge=1, description="Drop longer answers before training")
    ] = None
    require_think: Annotated[
        bool, Field(description="Off: answers written by people, without thinking, may pass")
    ] = True

    @model_validator(mode="after")
    def top_k_needs_a_ranking(self) -> Self:
        if self.top_k_sources and not (self.math_sources or self.code_sources):
            raise ValueError("top_k_sources needs math_sources or code_sources, best first")
        return self


class FilterTestsSettings(Settings):
    """Code problems with too few distinct tests invite false positives (§3.2.1)."""

    sources: Annotated[tuple[str, ...], Field(description="Only these sources; empty: all")] = ()
    min_tests: PositiveInt = 16  # §3.2.1


class FilterRLSettings(Settings):
    """pass@16 filter (§3.2.1), read as the share of the 16 completions that pass."""

    code_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5  # §3.2.1
    code_inclusive: Annotated[
        bool, Field(description="§3.2.1 says above 0.5; the caption of Fig. 4 says at least")
    ] = False
    math_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5  # §3.2.1: a majority
    min_scored: Annotated[
        float,
        Field(gt=0, le=1, description="Reject a prompt with fewer scored samples"),
    ] = 0.5


class JudgeStageSettings(Settings):
    judge: JudgeSettings = JudgeSettings()
