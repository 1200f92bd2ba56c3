"""A page as a list of blocks, written once and rendered as Markdown and as HTML.

Every string in a block is plain text. The renderers escape all of it, so a model's answer can
neither break out of its frame nor become markup.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "bad", "quiet"]


@dataclass(frozen=True)
class Cell:
    """A table cell: `text`, with `detail` smaller beside it and `change` coloured by `tone`.

    `link` is the http(s) address that the text leads to.
    """

    text: str
    detail: str = ""
    change: str = ""
    tone: Tone = ""
    link: str = ""

    def __post_init__(self) -> None:
        if self.link and not self.link.startswith(("http://", "https://")):
            raise ValueError(f"{self.link!r} is no http address")


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Notice:
    """What a reader must not miss."""

    title: str
    text: str


@dataclass(frozen=True)
class Tiles:
    """The few figures a page is about: (label, cell) each."""

    tiles: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Table:
    """One string or Cell per column in every row; the first names the row."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    caption: str = ""
    emphasis: frozenset[int] = frozenset()
    """Indices of the rows to set in bold."""
    prose: frozenset[int] = frozenset()
    """Indices of the columns that hold text: aligned left, wrapped."""
    stacked: bool = False
    """Details stand below their figures, not beside them."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)}")


@dataclass(frozen=True)
class Figure:
    """An SVG picture, saved as `plots/<name>.svg`; `alt` says what it shows."""

    name: str
    svg: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    """Pictures side by side where the screen is wide."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Verbatim:
    """Text of a model or of a data file, shown exactly and framed."""

    label: str
    text: str


@dataclass(frozen=True)
class Fold:
    """Blocks behind a summary line that opens on click."""

    summary: str
    blocks: tuple["Block", ...]
    is_open: bool = False


Block = Heading | Paragraph | Notice | Tiles | Table | Figures | Verbatim | Fold


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    label: str
    blocks: tuple[Block, ...]


def figures_of(blocks: Sequence[Block]) -> list[Figure]:
    """Every picture on the page, in order; names must be unique."""
    found: list[Figure] = []
    for block in blocks:
        if isinstance(block, Figures):
            found += block.figures
        elif isinstance(block, Fold):
            found += figures_of(block.blocks)
    return found


def as_cell(value: str | Cell) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)
