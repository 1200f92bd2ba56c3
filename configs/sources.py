"""Where problems come from: a named source of the catalogue, a hub dataset, files, a family.

sources:
  - {use: deepscaler, limit: 8000}                      # as the catalogue describes it
  - {use: apps, files: [mirror/apps/train.jsonl]}       # the same rows, without a network
  - {name: mine, files: [mine/*.jsonl], answer_field: solution, answer_in_box: true}
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from configs.base import HOW, Runtime, Settings
from configs.catalogue import catalogue
from configs.explain import nearest
from configs.overrides import layered

Scalar = bool | int | str
DATA_FORMATS = {"jsonl": "json", "json": "json", "parquet": "parquet", "arrow": "arrow"}
"""Suffix of a dataset's file → the builder of `datasets` that reads it."""


class Table(Settings):
    """Rows of a Hugging Face dataset, or of local files with the same fields."""

    dataset: Annotated[str, Field(description="Hugging Face dataset id, or a local clone")] = ""
    config: Annotated[str, Field(description="Configuration of the dataset")] = ""
    revision: Annotated[
        str, Field(description="Commit of the dataset; a branch is resolved when it is read")
    ] = "main"
    split: str = "train"
    data_files: Annotated[
        tuple[str, ...],
        Field(description="Files of the dataset; for those whose loading script no longer runs"),
    ] = ()
    files: Annotated[
        tuple[str, ...],
        Field(
            description="Local JSONL, JSON (both also .gz) or parquet instead; globs; relative to "
            "root"
        ),
    ] = ()

    @model_validator(mode="after")
    def data_files_are_of_one_format(self) -> Self:
        formats = {name.removesuffix(".gz").rpartition(".")[2] for name in self.data_files}
        if len(formats) > 1 or not formats <= set(DATA_FORMATS):
            raise ValueError(f"data_files must be of one format: {', '.join(DATA_FORMATS)}")
        return self


class LookupTable(Table):
    """A table whose rows are found by their number."""

    text_field: str = "question"

    @model_validator(mode="after")
    def the_table_is_somewhere(self) -> Self:
        if not (self.dataset or self.files):
            raise ValueError("a lookup table needs dataset or files")
        return self


class Lookup(Settings):
    """A prompt that stands in another dataset: row `index_field` of the table that a row names."""

    placeholder: Annotated[str, Field(description="The prompt of the rows to look up")] = "-"
    table_fields: Annotated[
        tuple[str, ...], Field(description="Their values, joined by a slash, name the table")
    ] = ("dataset", "split")
    index_field: str = "index"
    tables: dict[str, LookupTable]


class PromptPart(Settings):
    """One field of a prompt that is put together from several."""

    field: str
    heading: Annotated[str, Field(description="Stands on a line of its own before the text")] = ""


class Source(Table):
    """One place problems come from, and which of its fields mean what."""

    use: Annotated[str, Field(description="Name in configs/catalogue.toml; keys here win")] = ""
    name: Annotated[str, Field(description="Default: that of the catalogue")] = ""
    domain: Literal["math", "code"] = "math"
    kind: Literal["hub", "files", "generated"] = "files"
    licence: Annotated[str, Field(description="As the dataset card states it; empty: none")] = ""
    rank: Annotated[
        int | None,
        HOW,
        Field(ge=1, description="Quality rank in its domain, 1 is best (Tables 4, 5)"),
    ] = None
    where: dict[str, Scalar | tuple[Scalar, ...]] = Field(
        default_factory=dict,
        description="Only rows whose fields have these values, '' for none; others are counted",
    )
    prompt_field: Annotated[
        str, Field(description="Text or chat messages; a dot reaches into an object or a list")
    ] = "problem"
    prompt_parts: Annotated[
        tuple[PromptPart, ...],
        Field(description="Instead of prompt_field; all but the first may be missing"),
    ] = ()
    strip_prefixes: Annotated[
        tuple[str, ...], Field(description="Boilerplate before the problem, removed")
    ] = ()
    strip_suffixes: Annotated[
        tuple[str, ...], Field(description="Boilerplate after the problem, removed")
    ] = ()
    lookup: Annotated[
        Lookup | None, Field(description="For rows that name their prompt instead of giving it")
    ] = None
    gold_optional: Annotated[
        bool, Field(description="Keep a row without answer or tests: for SFT, never scored")
    ] = False
    answer_field: Annotated[str, Field(description="Empty: the source has no answers")] = "answer"
    answer_in_box: Annotated[
        bool, Field(description="The answer is the last \\boxed{} of answer_field")
    ] = False
    no_answers: Annotated[
        tuple[str, ...], Field(description="Values of answer_field that are none, like `proof`")
    ] = ()
    tests_field: Annotated[
        str, Field(description="Fields that hold tests, joined by +; empty: the source has none")
    ] = "tests"
    setup_field: Annotated[str, Field(description="Code to run before each assertion")] = ""
    checker_field: Annotated[
        str, Field(description="A Python checker: argv input, answer, output; prints 1 or 0")
    ] = ""
    fn_name_field: Annotated[
        str, Field(description="Field that names the function to call, if the tests do not")
    ] = ""
    time_limit_field: Annotated[str, Field(description="Seconds per test")] = ""
    memory_field: Annotated[str, Field(description="Megabytes per test")] = ""
    time_limit_s: Annotated[
        float, Field(gt=0, description="Per test, where the row names no limit")
    ] = 6.0
    memory_mb: Annotated[int, Field(ge=16, description="Where the row names no limit")] = 1024
    date_field: Annotated[str, Field(description="ISO date, or seconds since 1970")] = ""
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
    flawed_tests_share: Annotated[
        float,
        Field(ge=0, le=1, description="Code problems some of whose expected outputs are wrong"),
    ] = 0.0
    difficulty: Annotated[
        int | None, Field(ge=4, description="Largest number; default: the family's (generated)")
    ] = None
    smallest_target: Annotated[
        int, Field(ge=1, le=99, description="Of the targets (countdown)")
    ] = 1
    largest_target: Annotated[int, Field(ge=1, le=99, description="Of the targets (countdown)")] = (
        99
    )
    limit: Annotated[int | None, Field(ge=1, description="Keep the first N problems")] = None

    @model_validator(mode="before")
    @classmethod
    def from_the_catalogue(cls, data: Any) -> Any:
        """`use` fills in what the entry says; files of one's own replace the hub."""
        if not isinstance(data, dict) or not data.get("use"):
            return data
        entries, use = catalogue(), str(data["use"])
        if use not in entries:
            raise ValueError(
                f"the catalogue has no source {use!r}{nearest(use, entries)} "
                f"(it has: {', '.join(sorted(entries))})"
            )
        own = {**data, "kind": "files"} if data.get("files") and "kind" not in data else data
        return layered({"name": use, "kind": "hub", **entries[use]}, own)

    @model_validator(mode="after")
    def the_source_is_complete(self) -> Self:
        if not self.name:
            raise ValueError("a source needs a name, or `use` with a name of the catalogue")
        missing = {
            "hub": "" if self.dataset else "dataset",
            "files": "" if self.files else "files",
            "generated": "" if self.family else "family",
        }[self.kind]
        if missing:
            raise ValueError(f"source {self.name!r} of kind {self.kind} needs {missing}")
        if self.kind == "hub" and self.files:
            raise ValueError(
                f"source {self.name!r} is read from the hub or from files, not from both"
            )
        if self.smallest_target > self.largest_target:
            raise ValueError(f"source {self.name!r}: smallest_target is above largest_target")
        if self.duplicate_share + self.contaminated_share >= 1:
            raise ValueError(
                f"source {self.name!r}: duplicate_share and contaminated_share leave no room for "
                "ordinary problems; their sum must stay below 1"
            )
        return self


class CollectRuntime(Runtime):
    """How problems are collected, which shows neither in them nor in the stage's key."""

    workers: Annotated[PositiveInt, Field(description="Files read at once, each by a process")] = 1


class CollectSettings(Settings):
    root: Annotated[str, HOW, Field(description="Folder that file names start from")] = "."
    sources: tuple[Source, ...] = ()
    runtime: CollectRuntime = CollectRuntime()

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [s.name for s in self.sources]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"two sources are called {twice[0]!r}; names must be unique")
        return self
