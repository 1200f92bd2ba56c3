"""The picture of lineage: a result above all that it was made from, down to its sources.

A row a result. On its left lines run down to what it was made from, each in a lane of its own, as
in the graph of a git log: so it is as readable on a phone as on a desk, and needs no script.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from ..engine.why import NEVER
from ..store.lineage import ancestors
from ..store.store import Manifest, Store
from .figures import figure_of, number
from .page import html_file, render
from .run_story import duration, size

ROW, LANE, MARGIN = 104, 13, 14  # pixels
HUB = "https://huggingface.co/datasets/"


@dataclass(frozen=True)
class Node:
    """One row of the picture: a result, or a source of rows."""

    name: str
    """stage/key, or collect/key/source: what the lines go by."""
    title: str
    key: str
    figure: str
    why: str
    facts: str
    """Size, time, licence."""
    address: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """From a row to the one below that it was made from; no `lane`: they are neighbours."""

    start: int
    end: int
    lane: int | None


def lineage_page(store: Store, result: Manifest, url_of: Callable[[str], str]) -> str:
    """One HTML file. `url_of`: the address of a run in MLflow."""
    nodes = nodes_of(store, result, url_of)
    lines = lines_of(nodes)
    lanes = 1 + max((line.lane for line in lines if line.lane is not None), default=-1)
    x = MARGIN + lanes * LANE
    content = render(
        "lineage.html",
        nodes=nodes,
        paths=[Markup(_path(line, x)) for line in lines],
        middles=[_middle(row) for row in range(len(nodes))],
        x=x,
        gutter=x + MARGIN,
        row=ROW,
    )
    subtitle = "Each result stands above what it was made from."
    title, label = f"Lineage of {result.stage}", result.key[:8]
    return html_file(content, title=title, subtitle=subtitle, label=label)


def lineage_table(store: Store, result: Manifest, url_of: Callable[[str], str]) -> str:
    """The same as a table in Markdown, for pages that show no HTML."""
    lines = ["| | what it is | made from | why it was computed |", "|---|---|---|---|"]
    for node in nodes_of(store, result, url_of):
        title = f"[{node.title}]({node.address})" if node.address else node.title
        made_from = ", ".join(
            name.split("/")[2 if name.count("/") > 1 else 0] for name in node.inputs
        )
        cells = (f"{title} {node.key[:8]}", f"{node.figure} · {node.facts}", made_from, node.why)
        lines.append(f"| {' | '.join(cell.replace('|', '/').strip(' ·') for cell in cells)} |")
    return "\n".join(lines)


def nodes_of(store: Store, result: Manifest, url_of: Callable[[str], str]) -> list[Node]:
    """The result, then what it was made from: each after all that were made from it, a source after
    the result that read it."""
    nodes = []
    for m in (result, *reversed(ancestors(store, result))):
        sources = _sources(store.folder(m.stage, m.key), m)
        facts = size(m.bytes), duration(m.seconds), m.created[:10]
        nodes.append(
            Node(
                name=f"{m.stage}/{m.key}",
                title=m.stage,
                key=m.key,
                figure=figure_of(m.stage, m.metrics),
                why="the first of its stage" if m.why == NEVER else m.why,
                facts=" · ".join(facts),
                address=url_of(m.mlflow_run) if m.mlflow_run else "",
                inputs=(*(f"{i.stage}/{i.key}" for i in m.inputs), *(s.name for s in sources)),
            )
        )
        nodes += sources
    names = {node.name for node in nodes}  # what is gone from the store ends its branch
    return [
        replace(n, inputs=tuple(dict.fromkeys(i for i in n.inputs if i in names))) for n in nodes
    ]


def _sources(folder: Path, m: Manifest) -> list[Node]:
    """What a collecting stage has read."""
    file = folder / "sources.json"
    entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    nodes = []
    for entry in entries:
        dataset, revision = entry.get("dataset") or "", entry.get("revision") or ""
        rows = m.metrics.get(f"kept/{entry['name']}")
        facts = [
            f"licence {entry['licence']}" if entry.get("licence") else "",
            f"at {revision[:12]}" if revision else "",
        ]
        nodes.append(
            Node(
                name=f"{m.stage}/{m.key}/{entry['name']}",
                title=entry["name"],
                key="",
                figure="" if rows is None else f"{number('kept', rows)} problems",
                why=dataset,
                facts=" · ".join(filter(None, facts)),
                address=f"{HUB}{dataset}" if dataset.count("/") == 1 else "",
            )
        )
    return nodes


def lines_of(nodes: Sequence[Node]) -> list[Line]:
    """All lines to one result share a lane, which is free again below it."""
    rows = {node.name: row for row, node in enumerate(nodes)}
    users: dict[int, list[int]] = {}
    for row, node in enumerate(nodes):
        for name in node.inputs:
            users.setdefault(rows[name], []).append(row)
    free_below: list[int] = []  # of each lane
    lines = []
    for end, starts in sorted(users.items(), key=lambda item: (item[1][0], item[0])):
        far = [start for start in starts if start + 1 < end]
        lines += [Line(start, end, None) for start in starts if start + 1 == end]
        if far:
            lane = next((n for n, row in enumerate(free_below) if row <= far[0]), len(free_below))
            free_below[lane : lane + 1] = [end]
            lines += [Line(start, end, lane) for start in far]
    return lines


def _middle(row: int) -> int:
    return row * ROW + 20


def _path(line: Line, x: int) -> str:
    """Of an SVG: out of a row into the lane, down, and into the other row."""
    top, bottom = _middle(line.start), _middle(line.end)
    if line.lane is None:
        return f"M{x} {top}V{bottom}"
    side, bend = x - (line.lane + 1) * LANE, ROW // 3
    leave = f"C{x} {top + bend} {side} {top + bend // 2} {side} {top + bend}"
    enter = f"C{side} {bottom - bend // 2} {x} {bottom - bend} {x} {bottom}"
    return f"M{x} {top}{leave}V{bottom - bend}{enter}"
