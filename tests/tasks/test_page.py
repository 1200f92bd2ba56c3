"""Pages: no text of a model or a data file can break out of its frame."""

import re

import pytest
from markdown_it import MarkdownIt

from klear.tasks.report.page import Figure, Page, environment, link, with_inline_plots
from tests.tasks.pages_by_hand import EVIL, Elements, page_of


def test_no_text_becomes_markup():
    page = page_of(EVIL)
    for html in (page.html(), MarkdownIt("commonmark", {"html": True}).render(page.markdown())):
        found = Elements(html)
        assert not found.tags & {"script", "img"}
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        assert not [v for name, v in found.attributes if name == "href" and "javascript:" in v[:11]]
        assert found.summary == [" ".join(EVIL.split())]
        assert found.pre == [EVIL.replace("\r\n", "\n") + "\n"]
    assert Elements(page.html()).tags <= Elements(page_of("x").html()).tags


@pytest.mark.parametrize(
    "start", ["# a", "- a", "1. a", "2) a", "+ a", "=== ", "> a", "    code", "---"]
)
def test_a_line_that_begins_like_markup_stays_a_paragraph(start):
    text = environment().from_string("{{ text|line }}").render(text=start)
    assert Elements(MarkdownIt().render(text)).tags == {"p"}


def test_the_html_file_asks_for_nothing_outside_itself():
    body = "## First & second\n\n![a](plots/one.svg)\n"
    page = Elements(Page("Title", "s", "", body, [Figure("one", "<svg/>", "a")]).html())
    sources = [v for name, v in page.attributes if name in ("src", "href", "action")]
    assert len(sources) == 1
    assert sources[0].startswith("data:image/svg+xml")


def test_only_web_addresses_are_links():
    assert link("here", "javascript:alert(1)") == "here"
    assert link("a_b", "http://x/a?b=1") == r"[a\_b](<http://x/a?b=1>)"
    assert link("a", "http://x/a|b>") == "a"


def test_inlined_plots_need_no_folder(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "one.svg").write_text("<svg></svg>")
    text = with_inline_plots("![a \\[b\\]](plots/one.svg)\n![lost](plots/two.svg)", tmp_path)
    assert len(re.findall(r"\(data:image/svg\+xml;base64,", text)) == 1
    assert "plots/two.svg" in text
