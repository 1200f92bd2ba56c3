"""A Page as one self-contained HTML file: no script, no request, everything escaped."""

import base64
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from eval.page import (
    Block,
    Cell,
    Figure,
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

MANY_COLUMNS = 10  # more of them are set smaller on paper
STYLE = Path(__file__).with_name("page.css")
# Nothing may run or load, whatever a model wrote: a second lock behind the escaping.
_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


def to_html(page: Page) -> str:
    """The whole document; pictures are data URIs."""
    label = f'<span class="label">{escape(page.label)}</span>' if page.label else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(page.title)}</title>
<style>
{STYLE.read_text()}</style>
</head>
<body>
<header><div>
<h1>{escape(page.title)} {label}</h1>
<p>{escape(page.subtitle)}</p>
{_contents(page.blocks)}
</div></header>
<main>
{_blocks(page.blocks)}
</main>
</body>
</html>
"""


def _contents(blocks: Sequence[Block]) -> str:
    heads = [b for b in blocks if isinstance(b, Heading) and b.level == 2]
    links = "".join(f'<a href="#{_anchor(h.text)}">{escape(h.text)}</a>' for h in heads)
    return f'<nav aria-label="Sections">{links}</nav>'


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _blocks(blocks: Sequence[Block]) -> str:
    return "\n".join(_RENDER[type(b)](b) for b in blocks)


def _heading(block: Heading) -> str:
    anchor = f' id="{_anchor(block.text)}"' if block.level == 2 else ""
    return f"<h{block.level}{anchor}>{escape(block.text)}</h{block.level}>"


def _notice(block: Notice) -> str:
    return (
        f'<aside role="note"><strong>{escape(block.title)}</strong>'
        f"<p>{escape(block.text)}</p></aside>"
    )


def _cell(value: str | Cell) -> str:
    cell = as_cell(value)
    text = escape(cell.text)
    if cell.link:
        text = text.replace("_", "_<wbr>")
    parts = [f'<a href="{escape(cell.link)}">{text}</a>' if cell.link else text]
    if cell.detail:
        parts.append(f'<span class="detail">{escape(cell.detail)}</span>')
    if cell.change:
        parts.append(f'<span class="change {cell.tone}">{escape(cell.change)}</span>')
    return " ".join(parts)


def _tiles(block: Tiles) -> str:
    tiles = "".join(
        f'<div class="tile"><span class="name">{escape(label)}</span>'
        f'<span class="figure">{_cell(cell)}</span></div>'
        for label, cell in block.tiles
    )
    return f'<div class="tiles">{tiles}</div>'


def _table(block: Table) -> str:
    head = "".join(
        f'<th scope="col"{_kind(i, block)}>{escape(c)}</th>' for i, c in enumerate(block.columns)
    )
    body = "".join(_row(row, i in block.emphasis, block) for i, row in enumerate(block.rows))
    caption = f'<p class="caption">{escape(block.caption)}</p>' if block.caption else ""
    kinds = ("wide" * (len(block.columns) > MANY_COLUMNS), "stacked" * block.stacked)
    kind = f' class="{" ".join(filter(None, kinds))}"' if any(kinds) else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{caption}"
    )


def _row(row: tuple[str | Cell, ...], strong: bool, block: Table) -> str:
    first, *rest = row
    cells = "".join(f"<td{_kind(i, block)}>{_cell(c)}</td>" for i, c in enumerate(rest, 1))
    mark = ' class="strong"' if strong else ""
    return f'<tr{mark}><th scope="row">{_cell(first)}</th>{cells}</tr>'


def _kind(column: int, block: Table) -> str:
    return ' class="prose"' if column in block.prose or column == 0 else ""


def _figure(figure: Figure) -> str:
    data = base64.b64encode(figure.svg.encode()).decode()
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return (
        f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(figure.alt)}">'
        f"{caption}</figure>"
    )


def _figures(block: Figures) -> str:
    several = " several" if len(block.figures) > 1 else ""
    return f'<div class="figures{several}">{"".join(map(_figure, block.figures))}</div>'


def _verbatim(block: Verbatim) -> str:
    # A newline right after <pre> is dropped by the parser, so one is put there for it to drop.
    return (
        f'<div class="verbatim"><div class="name">{escape(block.label)}</div>'
        f"<pre>\n{escape(block.text)}</pre></div>"
    )


def _fold(block: Fold) -> str:
    state = " open" if block.is_open else ""
    return (
        f"<details{state}><summary>{escape(block.summary)}</summary>\n"
        f"{_blocks(block.blocks)}\n</details>"
    )


_RENDER: dict[type, Callable[..., str]] = {
    Heading: _heading,
    Paragraph: lambda b: f"<p>{escape(b.text)}</p>",
    Notice: _notice,
    Tiles: _tiles,
    Table: _table,
    Figures: _figures,
    Verbatim: _verbatim,
    Fold: _fold,
}
