"""The page renderers: no text of a model or a data file can break out of its frame."""

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

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
    Verbatim,
    figures_of,
)
from eval.page_html import to_html
from eval.page_markdown import to_markdown, with_inline_plots

EVIL = (
    "</pre></details><script>alert(1)</script>\n```\n# heading | cell |\n````text\n"
    "<img src=x onerror=alert(1)> [link](javascript:alert(1)) **bold** &amp; $x$\r\n- item"
)


class Elements(HTMLParser):
    """Collects tags, attributes and the text of every <pre> and <summary>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.pre: list[str] = []
        self.summary: list[str] = []
        self._inside: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag in ("pre", "summary"):
            self._inside = self.pre if tag == "pre" else self.summary
            self._inside.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("pre", "summary"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self._inside[-1] += data


def plain_page() -> Page:
    one, two = (Figure(n, f"<svg>{n}</svg>", alt=f"[{n}] (a plot)") for n in ("one", "two"))
    blocks = (Heading("First & second"), Figures((one,)), Fold("more", (Figures((two,)),)))
    return Page("Title", "Subtitle", "", (*blocks, Heading("Third"), Heading("inside", level=3)))


def evil_page() -> Page:
    row = (EVIL, Cell(EVIL, EVIL, EVIL, "good"))
    blocks: tuple[Block, ...] = (
        Notice(EVIL, EVIL),
        Paragraph(EVIL),
        Table((EVIL, EVIL), (row, row), caption=EVIL),
        Fold(EVIL, (Verbatim(EVIL, EVIL),)),
    )
    return Page(title=EVIL, subtitle=EVIL, label=EVIL, blocks=blocks)


def test_no_text_becomes_markup_in_html():
    page = Elements(to_html(evil_page()))
    ours = "html head meta title style body header div h1 span p nav main aside strong table thead"
    assert page.tags == set(f"{ours} tr th tbody td details summary pre".split())
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.summary == [EVIL]
    assert page.pre == ["\n" + EVIL]  # the parser of a browser drops that first newline


def test_no_text_becomes_markup_in_markdown():
    rendered = (
        MarkdownIt("commonmark", {"html": True}).enable("table").render(to_markdown(evil_page()))
    )
    page = Elements(rendered)
    assert page.tags == {
        "h1", "p", "blockquote", "strong", "table", "thead", "tbody", "tr", "th", "td", "em",
        "details", "summary", "pre", "code",
    }  # fmt: skip
    assert page.summary == [" ".join(EVIL.split())]
    assert page.pre == [EVIL.replace("\r\n", "\n") + "\n"]
    assert rendered.count("<tr>") == 3
    assert rendered.count("<h1>") == 1


def test_a_paragraph_that_begins_like_markup_stays_a_paragraph():
    starts = ("# a", "- a", "1. a", "2) a", "+ a", "=== ", "> a", "    code", "---")
    page = Page("t", "s", "", tuple(Paragraph(s) for s in starts))
    body = Elements(MarkdownIt().render(to_markdown(page)))
    assert body.tags == {"h1", "p"}


def test_the_html_file_asks_for_nothing_outside_itself():
    page = Elements(to_html(plain_page()))
    sources = [v for name, v in page.attributes if name in ("src", "href", "action")]
    assert sources
    assert all(v.startswith(("data:image/svg+xml", "#")) for v in sources)


def test_links_of_the_contents_lead_somewhere():
    page = Elements(to_html(plain_page()))
    targets = {v for name, v in page.attributes if name == "id"}
    assert {v[1:] for name, v in page.attributes if name == "href"} == targets


def test_inlined_plots_need_no_folder(tmp_path):
    page = plain_page()
    (tmp_path / "plots").mkdir()
    for figure in figures_of(page.blocks):
        (tmp_path / "plots" / f"{figure.name}.svg").write_text(figure.svg)
    text = with_inline_plots(to_markdown(page), tmp_path)
    assert "](plots/" not in text
    assert len(re.findall(r"\(data:image/svg\+xml;base64,", text)) == len(figures_of(page.blocks))
