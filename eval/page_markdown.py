"""A Page as GitHub-flavoured Markdown that no text on it can break."""

import base64
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.page import (
    Block,
    Cell,
    Figures,
    Fold,
    Heading,
    Notice,
    Page,
    Paragraph,
    Table,
    Tiles,
    Verbatim,
    as_cell,
)

PLOTS = "plots"
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$])")
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$)))?([#+=.)-])")  # "# ", "- ", "1. ", rules
_IMAGE = re.compile(rf"!\[((?:\\.|[^\]\\])*)\]\(({PLOTS}/[\w-]+\.svg)\)")


def to_markdown(page: Page) -> str:
    """The page with its pictures as relative links into `plots/`."""
    head = f"# {escape(page.title)}\n\n{paragraph(page.subtitle)}"
    return f"{head}\n\n{_blocks(page.blocks)}\n"


def with_inline_plots(markdown: str, folder: Path) -> str:
    """The text of `folder/report.md` with its plots as data URIs: it needs no folder any more."""

    def inline(match: re.Match[str]) -> str:
        text = (folder / match[2]).read_text(encoding="utf-8")
        on_paper = text.replace("<svg ", '<svg style="background:#fff" ', 1)  # pages may be dark
        svg = base64.b64encode(on_paper.encode()).decode()
        return f"![{match[1]}](data:image/svg+xml;base64,{svg})"

    return _IMAGE.sub(inline, markdown)


def escape(text: str) -> str:
    """Literal text inside of a line: no character of it is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def paragraph(text: str) -> str:
    """Literal text as a line of its own: its beginning is no heading, list or rule either."""
    return _BLOCK_START.sub(r"\1\\\2", escape(text))


def fence(text: str) -> str:
    """A code block around `text`, with more backticks than any run inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    body = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    return f"{marks}text\n{body}\n{marks}"


def _blocks(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_RENDER[type(b)](b) for b in blocks)


def _cell(value: str | Cell) -> str:
    cell = as_cell(value)
    text = escape(cell.text)
    parts = [f"[{text}](<{_address(cell.link)}>)" if cell.link else text]
    if cell.detail:
        parts.append(escape(cell.detail))
    if cell.change:
        parts.append(f"({escape(cell.change)})")
    return " ".join(parts)


def _address(link: str) -> str:
    """A link's target in angle brackets: nothing in it may end it or the table's cell."""
    return link.replace("<", "%3C").replace(">", "%3E").replace("|", "%7C").replace(" ", "%20")


def _notice(block: Notice) -> str:
    return f"> **{escape(block.title)}**\n>\n> {paragraph(block.text)}"


def _tiles(block: Tiles) -> str:
    return "\n".join(f"- {escape(label)}: **{_cell(cell)}**" for label, cell in block.tiles)


def _table(block: Table) -> str:
    rows = ["| " + " | ".join(escape(c) for c in block.columns) + " |"]
    left = {0, *block.prose}
    rows.append(
        "|" + "|".join(":--" if i in left else "--:" for i in range(len(block.columns))) + "|"
    )
    for i, row in enumerate(block.rows):
        cells = [_cell(c) for c in row]
        if i in block.emphasis:
            cells[0] = f"**{cells[0]}**"
        rows.append("| " + " | ".join(cells) + " |")
    caption = f"\n\n_{escape(block.caption)}_" if block.caption else ""
    return "\n".join(rows) + caption


def _figures(block: Figures) -> str:
    texts = []
    for figure in block.figures:
        image = f"![{escape(figure.alt)}]({PLOTS}/{figure.name}.svg)"
        texts.append(image + (f"\n\n_{escape(figure.caption)}_" if figure.caption else ""))
    return "\n\n".join(texts)


def _verbatim(block: Verbatim) -> str:
    return f"{paragraph(block.label)}:\n\n{fence(block.text)}"


def _fold(block: Fold) -> str:
    opening = "<details open>" if block.is_open else "<details>"
    summary = block.summary.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    summary = " ".join(summary.split())
    return f"{opening}<summary>{summary}</summary>\n\n{_blocks(block.blocks)}\n\n</details>"


_RENDER: dict[type, Callable[..., str]] = {
    Heading: lambda b: f"{'#' * b.level} {escape(b.text)}",
    Paragraph: lambda b: paragraph(b.text),
    Notice: _notice,
    Tiles: _tiles,
    Table: _table,
    Figures: _figures,
    Verbatim: _verbatim,
    Fold: _fold,
}
