"""`klear decontaminate IN --against FILE… --out DIR`: the decontaminate stage for any file.

kept.jsonl or kept.parquet           rows that share nothing, as they were
rejected.jsonl or rejected.parquet   the others, with one more column `reason`
hits.parquet                         (row, benchmark item) pairs that share an n-gram
decontamination.html                 what they mean: common wording, real leaks, both texts
"""

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from configs.data_stages import DecontaminateSettings
from eval.row_files import SUFFIXES, Row, read_rows
from eval.tables import ArrowWriter
from tasks.decontamination_page import PAGE, Decided, write_page
from tasks.jsonl_filter import filter_jsonl, printable
from tasks.ngrams import Item, NgramIndex
from tasks.overlaps import HITS, Overlaps
from tasks.parquet_filter import filter_parquet
from tasks.row_filter import NoSuchField, row_id

DONE, FAILED, WRONG_USAGE = 0, 1, 2
ITEM_FIELDS = ("prompt", "problem", "question", "text", "question_content")
SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev", "eval", "data"})
INPUTS = (".jsonl", ".jsonl.gz", ".parquet")
OUTPUTS = ("kept.jsonl", "kept.parquet", "rejected.jsonl", "rejected.parquet", "hits.parquet", PAGE)


class WrongUsage(Exception):
    """What the caller must change, in one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `klear decontaminate`."""
    default = DecontaminateSettings()
    parser.add_argument("input", type=Path, metavar="IN", help="JSONL, JSONL.gz or parquet")
    parser.add_argument(
        "--against", type=Path, nargs="+", required=True, metavar="FILE",
        help=f"benchmarks, same formats; text in {', '.join(ITEM_FIELDS)} or --text-field",
    )  # fmt: skip
    parser.add_argument("--n", type=int, default=default.n, help="words an n-gram (%(default)s)")
    parser.add_argument(
        "--normalize", default=default.normalize, choices=["alnum", "whitespace"],
        help="words: runs of letters and digits, or split at white space (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--min-coverage", type=float, default=default.min_coverage, metavar="SHARE",
        help="reject only if this share of an item's n-grams is shared (%(default)s: any)",
    )  # fmt: skip
    parser.add_argument("--text-field", default="prompt", help="field of IN (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")


def run(args: argparse.Namespace) -> int:
    """Exit code: 0 done, 1 failed (a damaged file, a full disk), 2 wrong usage."""
    try:
        settings = DecontaminateSettings(
            n=args.n, normalize=args.normalize, min_coverage=args.min_coverage
        )
        _check_paths(args)
        items = _items(list(dict.fromkeys(args.against)), args.text_field)
        index = NgramIndex(items, settings.n, settings.normalize)
        with _finished_folder(args.out) as work:
            counts = _filter(args, settings, index, work)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        return _complain(f"{option} {first['input']}: {first['msg']}", WRONG_USAGE)
    except NoSuchField as error:
        return _complain(f"{error}; choose one by --text-field", WRONG_USAGE)
    except WrongUsage as error:
        return _complain(str(error), WRONG_USAGE)
    except (OSError, ValueError) as error:
        return _complain(str(error), FAILED)
    _print_summary(counts, args)
    return DONE


def _complain(message: str, code: int) -> int:
    print(f"klear decontaminate: {message}", file=sys.stderr)
    return code


def _check_paths(args: argparse.Namespace) -> None:
    for path, suffixes in [(args.input, INPUTS), *((p, SUFFIXES) for p in args.against)]:
        if not path.is_file():
            raise WrongUsage(f"no file {path}")
        if not path.name.endswith(suffixes):
            raise WrongUsage(f"{path} is none of {', '.join(suffixes)}")
    if args.out.exists() and not args.out.is_dir():
        raise WrongUsage(f"--out {args.out} is a file; name a folder")
    if args.out.resolve() == args.input.resolve().parent and args.input.name in OUTPUTS:
        raise WrongUsage(f"--out {args.out} would replace {args.input}; name another folder")


def benchmark_names(paths: list[Path]) -> list[str]:
    """File stems; the folder's name instead of a split's, and both where one is not unique."""
    stems = [path.name.split(".")[0] for path in paths]
    parents = [path.resolve().parent.name for path in paths]
    names = [p if s in SPLITS and p else s for s, p in zip(stems, parents, strict=True)]
    times = Counter(names)
    both = [f"{p}/{s}" for s, p in zip(stems, parents, strict=True)]
    return [n if times[n] == 1 else b for n, b in zip(names, both, strict=True)]


def _items(paths: list[Path], text_field: str) -> Iterator[Item]:
    for path, name in zip(paths, benchmark_names(paths), strict=True):
        ids: set[str] = set()
        number = 0
        try:
            for row in read_rows(path):
                number = row.number
                yield _item(row, path, name, text_field, ids)
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} after row {number}: text that is no UTF-8") from error
        if not number:
            raise WrongUsage(f"{path} holds no rows: nothing would be protected")


def _item(row: Row, path: Path, benchmark: str, text_field: str, ids: set[str]) -> Item:
    if row.value is None:
        raise ValueError(f"{path} line {row.number}: {row.error}")
    fields = dict.fromkeys((text_field, *ITEM_FIELDS))
    text = next((t for f in fields if isinstance(t := row.value.get(f), str)), None)
    if text is None:
        raise WrongUsage(
            f"{path} row {row.number} has no text in {', '.join(fields)}; "
            f"it has: {', '.join(row.value)}"
        )
    id_ = printable(row_id(row.value.get("id"), row.number))
    if id_ in ids:
        id_ = f"{id_} (row {row.number})"
    ids.add(id_)
    return Item(benchmark, id_, printable(text))


@contextmanager
def _finished_folder(out: Path) -> Iterator[Path]:
    """A work folder whose files replace earlier results in `out` when all are written."""
    created = not out.exists()
    work = out / f".partial-{os.getpid()}"
    work.mkdir(parents=True)
    try:
        yield work
        for name in OUTPUTS:
            if (work / name).exists():
                os.replace(work / name, out / name)
            else:  # of an earlier run on another format
                (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if created and not any(out.iterdir()):
            out.rmdir()


def _filter(
    args: argparse.Namespace, settings: DecontaminateSettings, index: NgramIndex, work: Path
) -> dict[str, float]:
    filter_rows = filter_parquet if args.input.suffix == ".parquet" else filter_jsonl
    with ArrowWriter(work / "hits.parquet", HITS) as hits:
        overlaps = Overlaps(index, settings.min_coverage, hits)
        counts = filter_rows(args.input, args.text_field, overlaps.decide, work)
    decided = Decided(
        rows={args.input.name: counts["kept"] + counts["rejected"]},
        removed=counts["rejected"] - counts["malformed"],
        min_coverage=settings.min_coverage,
        normalise=settings.normalize,
        unlisted=counts["unlisted"],
        malformed=counts["malformed"],
    )
    names = ("kept", "rejected", "malformed", "unlisted", "repeated_ids")
    return {
        **{name: float(counts[name]) for name in names},
        **write_page(work, index, decided).metrics(),
        **index.metrics(),
    }


def _print_summary(counts: dict[str, float], args: argparse.Namespace) -> None:
    def number(name: str) -> str:
        return f"{int(counts[name]):,}"

    print(f"{number('kept')} kept, {number('rejected')} rejected → {args.out}")
    if not counts["kept"] + counts["rejected"]:
        print(f"{args.input} holds no rows")
    if counts["malformed"]:
        print(f"{number('malformed')} of the rejected are malformed: their reasons name the place")
    if counts["repeated_ids"]:
        print(f"{number('repeated_ids')} rows repeat an id: hits.parquet has row_number as well")
    print(
        f"{number('rows_any_ngram')} rows share a {args.n}-gram or a whole short item with "
        f"{number('items')} benchmark items (strict rule): {number('rows_coverage_50')} real leaks "
        f"that share half of an item or more, {number('rows_boilerplate')} with common wording only"
    )
    for name in (n.removeprefix("rows_hit/") for n in counts if n.startswith("rows_hit/")):
        hit, leaked = number(f"rows_hit/{name}"), number(f"rows_leaked/{name}")
        print(f"  {name}: {hit} rows, {leaked} real leaks")
    if counts["items_without_words"]:
        print(f"{number('items_without_words')} items hold no words and can match nothing")
    if counts["unlisted"]:
        print(f"{number('unlisted')} further hits of rows with very many are counted, not listed")
    print(f"page: {args.out / PAGE}")
