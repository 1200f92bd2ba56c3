"""The plan in a terminal: a table that fits its width, and below it what the figures rest on."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.plan import ASSUME, ASSUMED, Plan, assumptions, explained, headline, how, rows
from tasks.plan import PlannedStage

_STYLE = {"reuse": "cyan", "resume": "yellow", "compute": "green"}
WORDS = ("stage", "action", "why")
NARROWEST_WHY = 32


def print_page(stages: Sequence[PlannedStage], console: Console | None = None) -> None:
    """One line a stage and the sum of what is left to do; figures go into a table of their own
    where one is too wide for the terminal."""
    console = console or Console()
    table = rows(stages)
    figures = [n for n in (table[0] if table else {}) if n not in WORDS]
    if console.width < _width(table, figures):
        console.print(_table(table, WORDS))
        console.print(_table(table, ("stage", *figures)))
    else:
        console.print(_table(table, (*WORDS, *figures)))
    console.print(headline(stages), highlight=False)
    _print_basis(stages, console)


def _width(table: list[dict[str, str]], figures: Sequence[str]) -> int:
    """Columns that the whole table needs, each with two of space, `why` as narrow as it reads."""
    names = ("stage", "action", *figures)
    widths = [max(len(n), *(len(row[n]) for row in table)) for n in names] if table else []
    return sum(widths) + 2 * (len(names) + 1) + NARROWEST_WHY


def _table(rows: list[dict[str, str]], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        if name in WORDS:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [Text(row[n], style=_STYLE[row[n]] if n == "action" else "") for n in names]
        table.add_row(*cells)
    return table


def _print_basis(stages: Sequence[PlannedStage], console: Console) -> None:
    """Machines, arithmetic and memory where there is a topology; assumptions wherever one is."""
    if explained(stages):
        _list(console, "How it was counted", how(stages))
    if isinstance(stages, Plan) and stages.fits:
        fits = [(fit.stage, line) for fit in stages.fits for line in fit.lines]
        _list(console, f"{stages.topology}; memory in GiB a GPU", fits)
    if taken := assumptions(stages):
        _list(console, f"Assumptions ({ASSUMED}); change one with --set {ASSUME}=VALUE", taken)
    if isinstance(stages, Plan) and stages.problems:
        console.print("\n[red]These machines cannot run it:[/]")
        for problem in stages.problems:
            console.print(Text(f"  {problem}"))


def _list(console: Console, title: str, entries: Sequence[tuple[str, str]]) -> None:
    """Name and text in two columns; the text under the name where the terminal is narrow."""
    console.print(f"\n[bold]{escape(title)}[/]", highlight=False)
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(overflow="fold", max_width=console.width * 2 // 5)
    table.add_column(overflow="fold")
    seen = ""
    for name, text in entries:
        table.add_row(Text("" if name == seen else name), Text(text))
        seen = name
    console.print(table)
