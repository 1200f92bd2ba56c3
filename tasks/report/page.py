"""Pages: Markdown from the templates beside this module, and the same page as one HTML file.

Every value that a template prints is literal text: whatever a model or a data file says, none of
it becomes markup.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from .run_story import duration, size

TEMPLATES = Path(__file__).with_name("templates")
PLOTS = "plots"
_ADDRESS = re.compile(r"https?://[\w%/:=&?~#+!,;@.-]+", re.ASCII)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~&$])")
_BLOCK_START = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$)))?([#+=.)-])")  # "# ", "- ", "1. ", rules


@dataclass(frozen=True)
class Figure:
    """An SVG picture, saved as `plots/<name>.svg`; `alt` says what it shows."""

    name: str
    svg: str
    alt: str


@dataclass(frozen=True)
class Page:
    """`body` is Markdown that a template made; title, subtitle and label are plain text."""

    title: str
    subtitle: str
    label: str
    body: str
    figures: Sequence[Figure] = ()

    def markdown(self) -> str:
        """The page with its pictures as relative links into `plots/`."""
        return f"# {literal(self.title)}\n\n{line(self.subtitle)}\n\n{self.body.rstrip()}\n"

    def html(self) -> str:
        """One file that runs nothing and asks for nothing: pictures are data URIs."""
        parser = MarkdownIt("commonmark", {"html": True}).enable("table")
        content = parser.render(self.body)
        for figure in self.figures:
            link = f'src="{PLOTS}/{figure.name}.svg"'
            content = content.replace(link, f'src="{_data_uri(figure.svg)}"')
        return html_file(content, title=self.title, subtitle=self.subtitle, label=self.label)

    def write(self, out: Path) -> None:
        """report.md, report.html and plots/."""
        (out / "report.md").write_text(self.markdown(), encoding="utf-8")
        (out / "report.html").write_text(self.html(), encoding="utf-8")
        (out / PLOTS).mkdir(exist_ok=True)
        for figure in self.figures:
            (out / PLOTS / f"{figure.name}.svg").write_text(figure.svg, encoding="utf-8")


def html_file(content: str, **texts: str) -> str:
    """One HTML file around `content`; title, subtitle and label are plain text."""
    style, facts = (TEMPLATES / "page.css").read_text(), {n: escape(t) for n, t in texts.items()}
    return render("page.html", **facts, style=Markup(style), content=Markup(content))


def render(template: str, **facts: Any) -> str:
    """One of the templates with its facts."""
    return environment().get_template(template).render(facts)


def render_text(template: str, **facts: Any) -> str:
    """One of the templates for a terminal: values as they are, None as `off`."""
    plain = environment().overlay(autoescape=False, finalize=lambda v: "off" if v is None else v)
    return plain.get_template(template).render(facts).rstrip()


@cache
def environment() -> jinja2.Environment:
    """Of all templates; `finalize` makes literal text of every value that is not `Markup`."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=literal,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    count = "{:,.0f}".format
    figures = {"seconds": duration, "bytes": size, "tokens": count, "cost": "{:,.2f}".format}
    templates.globals |= {"link": link, "figures": figures}
    templates.filters |= {
        "line": line,
        "fence": fence,
        "html": lambda text: escape(" ".join(str(text).split())),
        "count": count,
        "percent": lambda share, digits=1: f"{100 * share:.{digits}f}",
        "duration": duration,
    }
    return templates


def literal(value: object) -> Markup:
    """Text inside of a line of Markdown, no character of which is markup; None is a dash."""
    if isinstance(value, Markup):
        return value
    text = "–" if value is None else str(value)
    return Markup(_SPECIAL.sub(r"\\\1", " ".join(text.split())))


def line(value: object) -> Markup:
    """Literal text as a line of its own: its beginning is no heading, list or rule either."""
    return Markup(_BLOCK_START.sub(r"\1\\\2", literal(value)))


def fence(text: str, language: str = "text") -> Markup:
    """A code block around `text`, with more backticks than any run inside it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    body = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    return Markup(f"{marks}{language}\n{body}\n{marks}")


def link(text: str, address: str) -> Markup:
    """A link to a web address; any other address leaves the text alone."""
    is_web = _ADDRESS.fullmatch(address)
    return Markup(f"[{literal(text)}](<{address}>)") if is_web else literal(text)


def with_inline_plots(markdown: str, folder: Path) -> str:
    """The text of `folder/report.md` with its plots as data URIs: it needs no folder any more."""
    for path in (folder / PLOTS).glob("*.svg"):
        svg = path.read_text(encoding="utf-8")
        on_paper = svg.replace("<svg ", '<svg style="background:#fff" ', 1)  # pages may be dark
        markdown = markdown.replace(f"]({PLOTS}/{path.name})", f"]({_data_uri(on_paper)})")
    return markdown


def _data_uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
