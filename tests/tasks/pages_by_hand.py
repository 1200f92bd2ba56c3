"""Pages: one with a text in every place, the tables of a Markdown text, elements of its HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path

from klear.tasks.report.page import Figure, Page, environment

EVIL = (
    "</pre></details><script>alert(1)</script>\n```\n# heading | cell |\n````text\n"
    "<img src=x onerror=alert(1)> [link](javascript:alert(1)) **bold** &amp; $x$\r\n- item"
)

EVERY_PLACE = Path(__file__).with_name("every_place.md").read_text()


def page_of(text: str) -> Page:
    body = environment().from_string(EVERY_PLACE).render(text=text)
    return Page(text, text, text, body, [Figure("one", "<svg/>", text)])


def table_rows(text: str, heading: str) -> dict[str, list[str]]:
    """First column → the others, of the tables below `heading` or folded under it, without escapes
    and emphasis."""
    begin = rf"^(?:#+ {heading}\n|<details[^>]*><summary>{heading})"
    section = re.split(begin, text, flags=re.M)[1].split("\n#")[0].split("\n</details>")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    plain = [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in rows]
    return {row[0].strip("*"): row[1:] for row in plain}


class Elements(HTMLParser):
    """Collects tags, attributes, table rows and the text of every <pre> and <summary>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self.pre: list[str] = []
        self.summary: list[str] = []
        self._inside: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("pre", "summary", "td", "th"):
            places = {"pre": self.pre, "summary": self.summary}
            self._inside = places[tag] if tag in places else self.rows[-1]
            self._inside.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("pre", "summary", "td", "th"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self._inside[-1] += data
