"""Raw rows of a declared source: local files or a Hugging Face dataset, always streamed.

Files are part of what a stage computes: `collected_files` and `recorded_files` name them for the
stage's key, which then changes with their bytes.
"""

from collections.abc import Iterator
from pathlib import Path

from configs.data_stages import CollectSettings, SampleSettings, Source
from eval.row_files import Row, find_files, read_rows


def source_rows(source: Source, root: Path) -> Iterator[Row]:
    """The rows of a `files` or `hub` source, each with its place."""
    if source.kind == "hub":
        yield from _hub_rows(source)
        return
    for file in _files(source, root):
        yield from read_rows(file, root)


def _files(source: Source, root: Path) -> list[Path]:
    return find_files(source.files, root, f"source {source.name!r}, files")


def _hub_rows(source: Source) -> Iterator[Row]:
    import datasets  # takes a second, and most runs read files

    try:
        rows = datasets.load_dataset(
            source.dataset,
            source.config or None,
            revision=source.revision,
            split=source.split,
            streaming=True,
        )
    except Exception as error:  # the hub raises its own kinds: not found, gated, no network
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"source {source.name!r}: cannot load dataset={source.dataset} "
            f"revision={source.revision} split={source.split}: {first}"
        ) from error
    for number, value in enumerate(rows, 1):
        yield Row(source.dataset, number, dict(value))


def collected_files(settings: CollectSettings) -> list[Path]:
    """The local files that `collect` reads; raises FileNotFoundError that names the source."""
    root = Path(settings.root)
    return [f for s in settings.sources if s.kind == "files" for f in _files(s, root)]


def recorded_files(settings: SampleSettings) -> list[Path]:
    """The files of recorded answers that `distill` reads, if its engine reads any."""
    engine = settings.engine
    return find_files(engine.files, Path(), "engine.files") if engine.kind == "recorded" else []
