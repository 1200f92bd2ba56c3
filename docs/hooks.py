"""What MkDocs reads from the code while it builds: reference pages, tables, and links that lead
out of docs/."""

import inspect
import json
import os.path
import re
import tomllib
from dataclasses import MISSING
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from cyclopts.docs.markdown import generate_markdown_docs
from mkdocs.structure.files import File

from klear.configs.machine import Machine
from klear.configs.metrics import metrics
from klear.configs.settings.base import read_catalogue
from klear.configs.settings.pipeline import Pipeline
from klear.configs.settings.sources import Source
from klear.eval.math_answers import beside, regions, scalars, shapes, verify
from klear.eval.math_answers.notation import functions, numerals, plain, spelling
from klear.eval.math_answers.rules import Rule
from klear.flows.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "configs/ablation_results/RESULTS.md"
SOURCES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "machines.md": "deployments/README.md",
    "trainer.md": "training/README.md",
    "results.svg": "configs/ablation_results/RESULTS.svg",
}
"""Pages, and a picture, whose text lies elsewhere in the repository."""
LINK = re.compile(r"(!?)\[([^][]*(?:\[[^]]*\][^][]*)*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
SOURCE = re.compile(r"<!-- source: ([\w.]+): ([\w ]+) -->")
PAPER = re.compile(r"§[\d.]+|(?:Table|Fig(?:ure|\.)|Eq\.|App\.) ?\w+")
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
BOUNDS |= {"minLength": "characters ≥", "maxLength": "characters ≤"}

MATH_RULES = (
    Rule("Worked solutions as gold", verify.stated),
    *beside.RULES,
    Rule("Program syntax and keyboards", plain.in_latex),
    Rule("Numbers in words", numerals.in_digits),
    Rule("Typesetting", spelling.spell),
    Rule("Units, percent and degrees", verify.spell_both),
    Rule("Named functions", functions.cut_out),
    *verify.RULES,
    *scalars.ORDERED_TEXTS,
    *regions.RULES,
    *shapes.RULES,
    *scalars.RULES,
)
"""In the order in which the judge takes them: how sides are read, then how they are compared."""


def cli() -> str:
    """Every command with its options, by cyclopts itself."""
    text = generate_markdown_docs(app(), recursive=True, generate_toc=False)
    codes = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 Ctrl-C."
    commands = re.sub(r"\A.*?(?=^## )", "\n", text, count=1, flags=re.S | re.M)
    return f"# Command line\n\n{codes}\n{commands}"


def configuration() -> str:
    """Every setting: a table a group, from the JSON schema of the whole tree."""
    schema = Pipeline.model_json_schema()
    groups = {"Pipeline": schema, **schema["$defs"]}
    page = [
        "# Configuration",
        "Made from the settings themselves. A default is the paper's value where the paper gives "
        "one. Change any of them with `--set sft.epochs=2` or in a profile. Unknown keys and wrong "
        "types are refused, all at once, with the nearest key.",
    ]
    for name, group in groups.items():
        if "properties" in group:
            used = [f"`{path}`" for path in _paths(groups, name)]
            description = group.get("description", "").replace("\n", " ")
            page += [
                f"## {name}",
                f"At {', '.join(used[:9])}." if used else "",
                description,
                _table(group),
            ]
    page += ["## Environment", "What is said of a machine, not of a run."]
    page += [_table(Machine.model_json_schema(), "KLEAR_")]
    return "\n\n".join(filter(None, page)) + "\n"


def sources() -> str:
    """Every entry of the catalogue, with the comment that stands beside it."""
    text = (ROOT / "configs/catalogue/catalogue.toml").read_text()
    counts = {n: v for part in read_catalogue("problems").values() for n, v in part.items()}
    page = [
        "# Sources by name",
        "Entries of `configs/catalogue/catalogue.toml`, for `{use: NAME}`. Rows are those of the "
        "dataset, before an entry's `where`; – is what nobody was found to have counted. A licence "
        "is the card's; – where the card states none. `main` stands where no commit is known: what "
        "was read is recorded with the result.",
        "| entry | dataset | rows | licence | commit | rows bring | not read, not verified |\n"
        "|---|---|---|---|---|---|---|",
    ]
    for above, name, beside_it in re.findall(r"^((?:# .*\n)*)\[(\w+)\](?: # (.*))?$", text, re.M):
        s = Source(use=name)
        gold = s.answer_field and "answers" if s.domain == "math" else s.tests_field and "tests"
        brings = [gold or "prompts"]
        brings += [f"answers of {s.trace_model}"] if s.trace_fields else []
        brings += [f"pass rates of {s.pass_rate_model}"] if s.pass_rate_field else []
        remarks = " ".join([above.replace("# ", "").replace("\n", " ").strip(), beside_it]).strip()
        rows = f"{counts[name]:,}" if name in counts else "–"
        where, what = f"{s.dataset} {s.config}".strip(), "; ".join(brings)
        cells = (f"`{name}`", where, rows, s.licence or "–", s.revision[:7], what, remarks)
        page[-1] += "\n| " + " | ".join(cells) + " |"
    return "\n\n".join(page) + "\n"


def metrics_page() -> str:
    """The table of metrics."""
    rows = (f"| `{m.pattern}` | {m.title} | {m.unit or '-'} | {m.about} |\n" for m in metrics())
    return read_catalogue("metrics")["page"]["head"] + "".join(rows)


def math_rules() -> str:
    """A row for every rule of the math judge, with its own cases."""

    def cell(cases: list[tuple[str, str]]) -> str:
        pairs = (f"`{gold}` ← `{answer}`" for gold, answer in cases)
        return "<br>".join(pairs).replace("|", r"\|").replace("\n", " ")

    rows = [
        f"| {r.name} | {cell(r.cases['accepts'])} | {cell(r.cases['refuses'])} |"
        for r in MATH_RULES
    ]
    page = [
        "# What the math judge accepts",
        "The rules in the order in which they are tried, each with its own cases, which are "
        "tested. They lie in `eval/math_answers`. How the judge reads an answer before "
        "it compares is in [judge](judge.md#math).",
        "| rule | right: gold ← answer | wrong |\n|---|---|---|",
    ]
    page[-1] += "".join(f"\n{row}" for row in rows if "`" in row)
    return "\n\n".join(page) + "\n"


def trl_options() -> str:
    """Every option of GRPOConfig: as GPPOTrainer takes it."""
    config = import_module("klear.training.rl.config")
    trl, refused = config.GRPOConfig.__dataclass_fields__, config.OPTIONS["refused"]
    ours = config.GPPOConfig.__dataclass_fields__
    rows = ["| option | default | GPPOTrainer |", "|---|---|---|"]
    for name in sorted(trl):
        default, takes = (trl[name].default, ours[name].default), "as TRL"
        if name in refused:
            values, *instead = refused[name]
            one = "only " + ", ".join(f"`{value}`" for value in values)
            takes = ": ".join([one, *instead])
        elif name in config.OPTIONS["mapped"]:
            takes = config.OPTIONS["mapped"][name]
        shown = " → ".join(dict.fromkeys(f"`{d}`" for d in default if not callable(d)))
        shown = "" if isinstance(trl[name].default, type(MISSING)) else shown
        rows.append(f"| `{name}` | {shown} | {takes} |")
    page = [
        "# Options of GRPOConfig",
        "`GPPOConfig` has every option of TRL's `GRPOConfig`. This table, made from the code, says "
        "which `GPPOTrainer` takes as TRL does, which mean something else, and of which it refuses "
        "other values when it is built. TRL's default → ours, where they differ. What `GPPOConfig` "
        "adds is in [the trainer](../training/README.md).",
        "\n".join(rows),
    ]
    return "\n\n".join(page) + "\n"


def _paths(groups: dict[str, Any], wanted: str) -> list[str]:
    """Where in the tree a group stands."""
    paths, left = [], [("", "Pipeline")]
    while left:
        above, name = left.pop(0)
        for key, value in groups[name].get("properties", {}).items():
            path = f"{above}{key}"
            for inner in dict.fromkeys(re.findall(r"#/\$defs/(\w+)", json.dumps(value))):
                paths += [path] if inner == wanted else []
                left.append((f"{path}.", inner))
    return paths


def _table(group: dict[str, Any], prefix: str = "") -> str:
    rows = ["| setting | kind and bounds | default | meaning | paper |", "|---|---|---|---|---|"]
    for name, value in group["properties"].items():
        description = " ".join(value.get("description", "").split())
        default = json.dumps(value["default"], ensure_ascii=False) if "default" in value else ""
        default = default and f"`{default}`" * (not default.startswith("{"))  # a group has its own
        paper = ", ".join(dict.fromkeys(m.strip() for m in PAPER.findall(description)))
        name = name.upper() if prefix else name
        cells = (f"`{prefix}{name}`", _kind(value), default, description, paper)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _kind(value: dict[str, Any]) -> str:
    if "$ref" in value:
        return f"[{(name := value['$ref'].rpartition('/')[2])}](#{name.lower()})"
    if "enum" in value or "const" in value:
        return " · ".join(f"`{v}`" for v in value.get("enum", [value.get("const")]))
    for together in ("anyOf", "oneOf", "allOf"):
        if together in value:
            return " or ".join(_kind(v) for v in value[together])
    if "items" in value:
        return f"list of {_kind(value['items'])}"
    bounds = [f"{sign} {value[key]:,}" for key, sign in BOUNDS.items() if key in value]
    return " ".join([value.get("type", "any").replace("null", "none"), *bounds])


def status() -> str:
    """The table of what was seen where, from docs/status.toml, its tests and GPU.jsonl."""
    log = ROOT / "GPU.jsonl"
    cases = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    rows = ["| part | seen on CPU | seen on GPU | never run |", "|---|---|---|---|"]
    for part in tomllib.loads((ROOT / "docs/status.toml").read_text())["part"]:
        test, pattern = part.get("cpu"), part.get("gpu")
        passed = [c for c in cases if pattern and c["gpu"] and c["result"] == "pass"]
        passed = [c for c in passed if any(fnmatchcase(c["case"], p) for p in pattern.split())]
        names = {c["case"] for c in passed}  # one that ran again is one
        on_cpu = f"[{Path(test).stem}]({test})" if test and (ROOT / test).is_file() else "–"
        on_gpu = "not yet" if pattern else "–"
        on_gpu = f"{len(names)} of its cases, {passed[-1]['gpu']}" if passed else on_gpu
        rows.append(f"| {part['name']} | {on_cpu} | {on_gpu} | {'' if passed or test else '×'} |")
    return "\n".join(rows)


def claims() -> str:
    """A line a claim, and how to read it, from the results of the ablations."""
    text = (ROOT / RESULTS).read_text()
    return text[text.index("|  | claim") : text.index("\n## Figure 2")].strip()


def code_of(module: str, *names: str) -> str:
    """Functions of a module: what the docstring says with its equations, then the code."""
    text = [inspect.getdoc(import_module(module)) or ""]
    for name in names:
        function = getattr(import_module(module), name)
        code = inspect.getsource(function).replace(f'    """{function.__doc__}"""\n', "")
        text += [f"### `{name}`", inspect.getdoc(function) or "", f"```python\n{code}```"]
    return "\n\n".join(text)


GENERATED = {
    "cli.md": cli,
    "configuration.md": configuration,
    "metrics.md": metrics_page,
    "sources.md": sources,
    "math_rules.md": math_rules,
    "trl_options.md": trl_options,
}


def on_files(files, config):
    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content=make()))
    for name, source in SOURCES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    for picture in (ROOT / "deployments/screenshots").glob("*.png"):
        name = f"screenshots/{picture.name}"
        files.append(File.generated(config, name, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Tables in their places; a link to a file that is no page becomes its text."""
    here = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {source: name for name, source in SOURCES.items()}

    def lead(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        path = os.path.normpath(os.path.join(os.path.dirname(here), target))
        if path in pages:
            target = pages[path]
        elif path.startswith("docs/"):
            target = path.removeprefix("docs/")
        elif path.startswith("deployments/screenshots/"):
            target = path.removeprefix("deployments/")
        else:
            return text if "`" in text else f"{text} (`{path}`)" if text != path else f"`{path}`"
        return f"{mark}[{text}]({target}{anchor or ''})"

    for make in (status, claims):
        name, table = make.__name__, make()
        parts = re.split(rf"<!-- {name} -->.*?<!-- /{name} -->", markdown, flags=re.S)
        markdown = table.join(parts)
    markdown = SOURCE.sub(lambda m: code_of(m[1], *m[2].split()), markdown)
    return LINK.sub(lead, markdown)
