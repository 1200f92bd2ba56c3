"""The rows of SFT: examples as tokens with labels, and a report of those that are too long."""

from collections.abc import Callable, Iterator
from pathlib import Path

from datasets import Dataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from eval.records import Example, Record
from eval.tables import count_rows, read_table, row_groups, to_records, write_table
from training import render

IGNORED = -100  # label of a token without loss


class TooLong(Record):
    """An example with more tokens than `max_length`."""

    problem_id: str
    index: int
    source: str
    tokens: int
    """Of prompt and answer."""
    max_length: int
    treatment: str
    """cut: trained on without its end; drop: not trained on."""


def tokenized(
    examples: Path,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    cache: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Dataset:
    """Columns input_ids, labels (−100 on the prompt), length, tokens (before any cut); on disk,
    in the order of the file.

    `report(done, total)` is called before every row group of the file; nothing is done when
    `cache` has the rows.
    """

    def rows(path: str) -> Iterator[dict]:
        done, total = 0, count_rows(Path(path))
        for table in row_groups(Path(path)):
            report(done, total)
            batch = list(to_records(table, Example))
            prompts = render.prompt_ids(tokenizer, [e.prompt for e in batch])
            answers = render.response_ids(tokenizer, [e.response for e in batch])
            for prompt, answer in zip(prompts, answers, strict=True):
                ids = [*prompt, *answer]
                yield {
                    "input_ids": ids[:max_length],
                    "labels": ([IGNORED] * len(prompt) + answer)[:max_length],
                    "length": min(len(ids), max_length),
                    "tokens": len(ids),
                }
            done += len(batch)

    dataset = Dataset.from_generator(
        rows,
        gen_kwargs={"path": str(examples)},
        cache_dir=str(cache),
        fingerprint=Hasher.hash([tokenizer, max_length, str(examples)]),
    )
    assert isinstance(dataset, Dataset)
    return dataset


def report_too_long(
    dataset: Dataset, examples: Path, max_length: int, treatment: str, path: Path
) -> int:
    """Write a row for every example over `max_length` into `path`, if any; returns how many."""
    found = [
        TooLong(
            problem_id=e.problem_id,
            index=e.index,
            source=e.source,
            tokens=n,
            max_length=max_length,
            treatment=treatment,
        )
        for e, n in zip(read_table(examples, Example), dataset["tokens"], strict=True)
        if n > max_length
    ]
    if found:
        write_table(path, TooLong, found)
    return len(found)


def trainable(dataset: Dataset, max_length: int, treatment: str) -> tuple[Dataset, list[int]]:
    """(rows to train on, their lengths); the last row is a filler without any label.

    Raises ValueError when nothing is left.
    """
    if treatment == "drop":
        kept = [i for i, n in enumerate(dataset["tokens"]) if n <= max_length]
        dataset = dataset.select(kept)
    if not len(dataset):
        raise ValueError(
            f"every example has more than max_length={max_length} tokens and too_long=drop: raise "
            "max_length, or use too_long=cut"
        )
    rows = dataset.remove_columns(["length", "tokens"])
    ids = rows[0]["input_ids"][:2]
    filler = {"input_ids": ids, "labels": [IGNORED] * len(ids)}
    return rows.add_item(filler), list(dataset["length"])  # type: ignore[arg-type]
