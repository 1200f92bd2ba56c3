"""The picture of lineage: every result and source with its facts, and each line where it leads."""

import json
from html.parser import HTMLParser
from pathlib import Path
from random import Random

from klear.tasks.report.lineage_page import Node, lineage_page, lineage_table, lines_of, nodes_of
from klear.tasks.store.store import Store
from tests.tasks.manifests_by_hand import publish

KEYS = {name: f"{n:016x}" for n, name in enumerate(("collect", "select", "sft", "evaluate_sft"))}
CHAIN = {"select": ("collect",), "sft": ("select",), "evaluate_sft": ("sft", "select", "gone")}
HUB = "https://huggingface.co/datasets/org/rows"


def address(run: str) -> str:
    return f"http://mlflow/#/runs/{run}"


def test_every_row_says_key_why_size_and_where_to_read_on(tmp_path: Path) -> None:
    publish(tmp_path, "collect", KEYS["collect"], metrics={"kept/mine": 2_250.0})
    sources = [{"name": "mine", "dataset": "org/rows", "revision": "", "licence": "MIT"}]
    (tmp_path / "collect" / KEYS["collect"] / "sources.json").write_text(json.dumps(sources))
    for stage, inputs in CHAIN.items():
        facts = {"inputs": tuple((i, KEYS.get(i, "none")) for i in inputs), "mlflow_run": stage}
        last = publish(tmp_path, stage, KEYS[stage], why="epochs: 1 → <script>2", **facts)
    store = Store(tmp_path)
    nodes = nodes_of(store, last, address)
    assert [n.title for n in nodes] == ["evaluate_sft", "sft", "select", "collect", "mine"]
    assert nodes[0].inputs == (f"sft/{KEYS['sft']}", f"select/{KEYS['select']}")
    assert (nodes[-1].figure, nodes[-1].facts) == ("2,250 problems", "licence MIT")

    page = lineage_page(store, last, address)
    texts, links = list[str](), list[str]()
    parser = HTMLParser()
    parser.handle_data = texts.append  # type: ignore[method-assign]
    parser.handle_starttag = lambda tag, attrs: links.extend(v for n, v in attrs if n == "href")  # type: ignore
    parser.feed(page)
    assert links == [*(address(s) for s in ("evaluate_sft", "sft", "select")), HUB]
    assert texts.count("epochs: 1 → <script>2") == 3
    assert {KEYS["sft"][:8], "1.0 kB · 10 s · 2026-01-01"} <= {text.strip() for text in texts}

    _, _, *rows = lineage_table(store, last, address).splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[0] for row in cells[::3]] == [
        f"[evaluate_sft]({address('evaluate_sft')}) 00000000", "collect 00000000",
    ]  # fmt: skip
    assert [row[2] for row in cells[::3]] == ["sft, select", "mine"]
    assert cells[4] == [f"[mine]({HUB})", "2,250 problems · licence MIT", "", "org/rows"]
    assert [row[3] for row in cells[:3]] == ["epochs: 1 → <script>2"] * 3


def test_each_line_leads_from_a_result_to_what_it_was_made_from_and_no_two_share_a_piece() -> None:
    draw = Random(0)
    for _ in range(50):
        count = draw.randrange(1, 12)
        nodes = [
            Node(str(n), "", "", "", "", "", "", tuple(
                str(i) for i in range(n + 1, count) if draw.random() < 0.3))
            for n in range(count)
        ]  # fmt: skip
        lines = lines_of(nodes)
        wanted = [(n, int(i)) for n, node in enumerate(nodes) for i in node.inputs]
        assert sorted((line.start, line.end) for line in lines) == sorted(wanted)
        assert all((line.lane is None) == (line.end == line.start + 1) for line in lines)
        owner = dict[tuple[int | None, int], int]()
        for line in lines:
            for row in range(line.start, line.end) if line.lane is not None else ():
                assert owner.setdefault((line.lane, row), line.end) == line.end
