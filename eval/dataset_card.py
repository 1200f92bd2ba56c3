"""The card of a published dataset: what it holds, where it is from, what every step left of it.

Written as `README.md` with the front matter of a Hugging Face dataset card, so that the hub
can show it. The settings are printed as they are: read them before you share the folder.
"""

from collections.abc import Mapping, Sequence

from eval.card_facts import CardFacts, SourceFacts, Step
from eval.page import Block, Cell, Figure, Figures, Heading, Page, Paragraph, Table, Tiles
from eval.page_markdown import to_markdown
from eval.plots import Bar, funnel_plot

UNKNOWN = "not stated"


def dataset_card(facts: CardFacts) -> str:
    """The card as Markdown with front matter; its picture is `plots/funnel.svg`."""
    page = Page(
        title=f"{facts.stage} ({facts.key})",
        subtitle="Published by klear. Equal settings and inputs give equal bytes.",
        label="",
        blocks=(
            *_funnel(facts),
            *_sources(facts.sources),
            *_files(facts),
            *_settings(facts),
            *_lineage(facts),
        ),
    )
    return _front_matter(facts) + to_markdown(page)


def funnel_svg(steps: Sequence[Step]) -> str:
    """Rows kept and rejected by every step."""
    bars = [Bar(s.stage, _total(s.kept), _total(s.rejected)) for s in steps]
    return funnel_plot(bars)


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def _front_matter(facts: CardFacts) -> str:
    """The keys that the hub reads: licences, and one configuration for every table."""
    licences = sorted({s.licence.lower() for s in facts.sources if s.licence})
    lines = ["---"]
    if len(licences) == 1:
        lines.append(f"license: {_quoted(licences[0])}")
    elif licences:
        lines += ["license:", *(f"  - {_quoted(name)}" for name in licences)]
    lines.append("configs:")
    for table in facts.tables:
        stem = table.name.removesuffix(".parquet")
        lines += [f"  - config_name: {_quoted(stem)}", f"    data_files: {_quoted(table.name)}"]
    return "\n".join([*lines, "---", "", ""])


def _quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _funnel(facts: CardFacts) -> list[Block]:
    last = facts.steps[-1]
    tiles = [
        ("Rows", Cell(f"{_total(last.kept):,}")),
        ("Rejected by this step", Cell(f"{_total(last.rejected):,}")),
        ("Content digest (SHA-256)", Cell(facts.digest)),
    ]
    figure = Figure("funnel", funnel_svg(facts.steps), alt="Rows kept and rejected by every step")
    names = list(dict.fromkeys(n for s in facts.steps for n in (*s.kept, *s.rejected) if n))
    rows = [(name, *(_count(step, name) for step in facts.steps)) for name in names]
    rows.append(("all", *(_kept_of(_total(s.kept), _total(s.rejected)) for s in facts.steps)))
    return [
        Tiles(tuple(tiles)),
        Heading("Rows by source and step"),
        Figures((figure,)),
        Table(
            ("Source", *(step.stage for step in facts.steps)),
            tuple(rows),
            caption="Rows kept; “of” adds the rows that the step rejected, each with its reason "
            "in rejected.parquet. – : the rows of this step name no source.",
            emphasis=frozenset({len(rows) - 1}),
        ),
    ]


def _count(step: Step, name: str) -> str:
    if "" in step.kept or not (step.kept or step.rejected):
        return "–"
    return _kept_of(step.kept.get(name, 0), step.rejected.get(name, 0))


def _kept_of(kept: int, rejected: int) -> str:
    return f"{kept:,} of {kept + rejected:,}" if rejected else f"{kept:,}"


def _sources(sources: Sequence[SourceFacts]) -> list[Block]:
    if not sources:
        return []
    rows = tuple(
        (s.name, s.dataset or "–", s.revision or "–", s.licence or UNKNOWN) for s in sources
    )
    table = Table(("Source", "Dataset", "Revision", "Licence"), rows, prose=frozenset({1, 2, 3}))
    return [Heading("Sources and licences"), table]


def _files(facts: CardFacts) -> list[Block]:
    rows = tuple((t.name, f"{t.rows:,}", ", ".join(t.columns), t.sha256) for t in facts.tables)
    columns = ("File", "Rows", "Columns", "SHA-256")
    return [Heading("Files"), Table(columns, rows, prose=frozenset({2, 3}))]


def _settings(facts: CardFacts) -> list[Block]:
    settings = dict(facts.settings)
    if facts.seed is not None:
        settings["seed"] = str(facts.seed)
    if not settings:
        return [Heading("Settings"), Paragraph("This step has no settings.")]
    table = Table(("Setting", "Value"), tuple(settings.items()), prose=frozenset({1}))
    return [Heading("Settings"), table]


def _lineage(facts: CardFacts) -> list[Block]:
    if not facts.inputs:
        return []
    table = Table(("Made from", "Key", "Digest"), tuple(facts.inputs), prose=frozenset({1, 2}))
    return [Heading("Lineage"), table]
