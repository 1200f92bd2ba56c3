"""Where problems come from: a named source of the catalogue, a hub dataset, files, a family.

sources:
  - {use: deepscaler, limit: 8000}                      # as the catalogue describes it
  - {use: apps, files: [mirror/apps/train.jsonl]}       # the same rows, without a network
  - {name: mine, files: [mine/*.jsonl], answer_field: solution, answer_in_box: true}
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from .base import NOT_IN_KEY, BelowOne, Settings, Share, Workers, layered, read_catalogue
from .explain import nearest

Scalar = bool | int | str
Target = Annotated[int, Field(ge=1, le=99)]
DATA_FORMATS = {"jsonl": "json", "json": "json", "parquet": "parquet", "arrow": "arrow"}
"""Suffix of a dataset's file → the builder of `datasets` that reads it."""
READINGS = (
    "prompt_field", "prompt_parts", "answer_field", "answer_in_box", "answer_after", "tests_field",
    "options_field", "lookup", "gold_optional",
)  # fmt: skip
"""What a source that names its fields says."""


class Table(Settings):
    """Rows of a Hugging Face dataset, or of local files with the same fields."""

    dataset: str = ""
    """Hugging Face dataset id, or a local clone"""
    config: str = ""
    """Configuration of the dataset"""
    revision: str = "main"
    """Commit of the dataset; a branch is resolved when it is read"""
    split: str = "train"
    data_files: tuple[str, ...] = ()
    """Files of the dataset; for those whose loading script no longer runs"""
    files: tuple[str, ...] = ()
    """Local JSONL, JSON, CSV, TSV (also .gz, .zst) or parquet instead; globs; relative to root"""

    @model_validator(mode="after")
    def data_files_are_of_one_format(self) -> Self:
        formats = {name.removesuffix(".gz").rpartition(".")[2] for name in self.data_files}
        if len(formats) > 1 or not formats <= set(DATA_FORMATS):
            raise ValueError(f"data_files must be of one format: {', '.join(DATA_FORMATS)}")
        return self


class LookupTable(Table):
    """A table whose rows are found by their number, or by a field."""

    text_field: str = "question"
    key_field: str = ""
    """What rows are found by; empty: their number, from 0"""
    where: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Only rows whose fields have these values"""


class Lookup(Settings):
    """A prompt that stands in another dataset: row `index_field` of the table that a row names."""

    tables: dict[str, LookupTable]
    index_field: str = "index"

    placeholder: ClassVar = "-"  # the prompt of the rows to look up, of several tables
    table_fields: ClassVar = ("dataset", "split")  # joined by a slash they name one of several


class PromptPart(Settings):
    """One field of a prompt that is put together from several."""

    field: str
    heading: str = ""
    """Stands on a line of its own before the text"""


class Source(Table):
    """One place problems come from, and which of its fields mean what."""

    use: str = ""
    """Name in configs/catalogue/catalogue.toml; keys here win"""
    name: str = ""
    """Default: that of the catalogue"""
    domain: Literal["math", "code"] = "math"
    kind: Literal["hub", "files", "generated"] = "files"
    licence: str = ""
    """As the dataset card states it; empty: none"""
    where: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Only rows with these values, '' for none, `begins*` for beginnings; others are counted"""
    prompt_field: str = "problem"
    """Text or chat messages; a dot reaches into an object or a list"""
    prompt_parts: tuple[PromptPart, ...] = ()
    """Instead of prompt_field; all but the first may be missing"""
    strip_prefixes: tuple[str, ...] = ()
    """Boilerplate before the problem, removed"""
    strip_suffixes: tuple[str, ...] = ()
    """Boilerplate after the problem, removed"""
    lookup: Lookup | None = None
    """For rows that name their prompt instead of giving it"""
    by_shape: bool = False
    """Recognise fields that are not named; so are files read for which none is named"""
    gold_optional: bool = False
    """Keep a row without answer or tests: for SFT, never scored"""
    answer_field: str = "answer"
    """Empty: the source has no answers"""
    answer_in_box: bool = False
    r"""The answer is the last \boxed{} of answer_field"""
    answer_after: str = ""
    """The answer is what follows the last of these in answer_field, as `####` in GSM8K"""
    options_field: str = ""
    """Options of a multiple choice: they join the prompt, and a number as answer is a letter"""
    options_from: Literal[-1, 0, 1] = 0
    """The number of the first option, where answers are numbers; -1: refuse numbers"""
    all_answers: bool = False
    """A list of several answers is the gold as a whole; else it is refused"""
    any_answer: bool = False
    """… or whatever equals one of them is right"""
    no_answers: tuple[str, ...] = ()
    """Values of answer_field that are none, like `proof`"""
    tests_field: str = "tests"
    """Fields that hold tests, joined by +; empty: the source has none"""
    checker_field: str = ""
    """A Python checker: argv input, answer, output; prints 1 or 0"""
    setup_field: str = ""
    """Code that runs before each assertion"""
    show_tests: NonNegativeInt = 0
    """So many assertions join the prompt, which else would not name the function"""
    shown_field: str = ""
    """List that they are taken from; empty: tests_field"""
    fn_name_field: str = ""
    """Field that names the function to call, if the tests do not"""
    time_limit_field: str = ""
    """Seconds per test"""
    memory_field: str = ""
    """Megabytes per test"""
    date_field: str = ""
    """ISO date, or seconds since 1970"""
    trace_fields: tuple[str, ...] = ()
    """Fields that hold published answers: a text, a chat, or a list of texts"""
    trace_model: str = ""
    """Who wrote them, or the field that says it"""
    pass_rate_field: str = ""
    """Published pass rate: 0 to 1, `3/8`, or `right` and `wrong` of one answer"""
    pass_rate_model: str = ""
    """Whose answers passed"""
    family: Literal["countdown", "by_example"] | None = None
    """Generated family; what follows is of generated problems"""
    size: PositiveInt = 100
    """Problems to generate"""
    split_part: Literal["train", "test"] = "train"
    """Side of the family's hash split"""
    fixed_seed: int | None = None
    """Ignore the run's seed: benchmarks stay the same"""
    duplicate_share: BelowOne = 0.0
    """Planted duplicates"""
    contaminated_share: BelowOne = 0.0
    """Planted benchmark problems"""
    contaminated_seed: int = 0
    """fixed_seed of the benchmark whose problems are planted"""
    few_tests_share: Share = 0.0
    """Problems with under 16 tests (by_example)"""
    flawed_tests_share: Share = 0.0
    """Code problems some of whose expected outputs are wrong"""
    difficulty: Annotated[int, Field(ge=4)] | None = None
    """Largest number; default: the family's"""
    smallest_target: Target = 1
    """Of the targets (countdown)"""
    largest_target: Target = 99
    """Of the targets (countdown)"""
    limit: PositiveInt | None = None
    """Keep the first N problems"""
    untrained: Annotated[bool, NOT_IN_KEY] = False
    """No stage takes it: it is there for what the filters find in it"""

    time_limit_s: ClassVar = 6.0  # per test, where the row names no limit
    memory_mb: ClassVar = 1024

    @model_validator(mode="before")
    @classmethod
    def from_the_catalogue(cls, data: Any) -> Any:
        """`use` fills in what the entry says; files of one's own replace the hub. Without it, and
        without the name of a field, rows are read by their shape."""
        if not isinstance(data, dict):
            return data
        if not data.get("use"):
            if data.get("files") and not {*READINGS, "dataset", "by_shape"} & data.keys():
                data = {**data, "by_shape": True}
            shape = dict.fromkeys(("prompt_field", "answer_field", "tests_field"), "")
            return {**shape, **data} if data.get("by_shape") else data
        entries, use = read_catalogue("catalogue"), str(data["use"])
        if use not in entries:
            choice = f"{nearest(use, entries)} (it has: {', '.join(sorted(entries))})"
            raise ValueError(f"the catalogue has no source {use!r}{choice}")
        own = {**data, "kind": "files"} if data.get("files") and "kind" not in data else data
        return layered({"name": use, "kind": "hub", **entries[use]}, own)

    @model_validator(mode="after")
    def the_source_is_complete(self) -> Self:
        if not self.name:
            raise ValueError("a source needs a name, or `use` with a name of the catalogue")
        needed = {"hub": "dataset", "files": "files", "generated": "family"}[self.kind]
        wrong = ""
        if not getattr(self, needed):
            wrong = f"of kind {self.kind} needs {needed}"
        elif self.kind == "hub" and self.files:
            wrong = "is read from the hub or from files, not from both"
        elif self.kind != "generated" and self.size != type(self).model_fields["size"].default:
            wrong = f"is not generated, so size={self.size} would cut nothing: use limit"
        elif bool(self.trace_fields) != bool(self.trace_model):
            wrong = "needs trace_model, who wrote what its trace_fields hold"
        elif bool(self.pass_rate_field) != bool(self.pass_rate_model):
            wrong = "needs pass_rate_model, whose answers its pass_rate_field counts"
        elif self.smallest_target > self.largest_target:
            wrong = "has a smallest_target above largest_target"
        elif self.duplicate_share + self.contaminated_share >= 1:
            wrong = "needs duplicate_share and contaminated_share that add up to less than 1"
        if wrong:
            raise ValueError(f"source {self.name!r} {wrong}")
        return self


class CollectSettings(Settings):
    root: Annotated[str, NOT_IN_KEY] = "."
    """Folder that file names start from"""
    sources: tuple[Source, ...] = ()
    traces: bool = False
    """Keep the answers in trace_fields, for an engine that is from: catalogue"""
    pass_rates: bool = False
    """Keep what pass_rate_field holds, for a stage that takes published pass rates"""
    runtime: Workers = Workers()

    def to_read(self, place: int) -> Source:
        """One of the sources, without the fields of what is not kept."""
        unread: dict[str, Any] = {} if self.traces else {"trace_fields": ()}
        unread |= {} if self.pass_rates else {"pass_rate_field": ""}
        return self.sources[place].model_copy(update=unread)

    @model_validator(mode="after")
    def names_are_unique(self) -> Self:
        names = [s.name for s in self.sources]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"two sources are called {twice[0]!r}; names must be unique")
        return self
