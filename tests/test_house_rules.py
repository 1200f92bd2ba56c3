"""The house rules a linter does not know (CONTRIBUTING.md)."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from grimp import build_graph

from klear.configs.settings.pipeline import STAGES

ROOT = Path(__file__).resolve().parents[1]
CODE = ("configs", "eval", "training", "tasks", "flows")
SOURCE = (*CODE, "deployments")
LONG: dict[str, str] = {}
"""Files over 500 lines, each with its reason."""
ROLES = {
    "found", "known", "asked", "said", "told", "there", "given", "made", "about", "whole", "mine",
    "how", "of", "by",
}  # fmt: skip
"""Names of a grammatical role: a function must be run in the head to learn what `found` is."""
ROLES_WITH_REASON = {
    "configs/metrics.py": {"about"},  # a key of figures.toml
    "tasks/data/ngrams.py": {"whole"},  # items of fewer words than n, which match as a whole
}


def files(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def test_no_file_is_long_no_folder_full_no_name_empty_and_every_module_says_what_it_is() -> None:
    lines = {f: len(f.read_text().splitlines()) for f in files(*SOURCE, "tests")}
    assert {str(f.relative_to(ROOT)) for f, n in lines.items() if n > 500} == LONG.keys()
    folders = {f.parent for f in files(*CODE)}
    entries = {f: [e for e in f.iterdir() if e.name != "__pycache__"] for f in folders}
    assert not [str(folder) for folder, some in entries.items() if len(some) > 16]
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "core", "manager"}
    shadowing = {"math", "code", "types"}
    assert not [f.name for f in files(*SOURCE) if f.stem in empty | shadowing]
    silent = [f for f in files(*SOURCE) if not ast.get_docstring(ast.parse(f.read_text()))]
    assert not [str(f.relative_to(ROOT)) for f in silent]


def bindings(tree: ast.AST) -> Iterator[str]:
    """Variables, parameters and attributes that a file gives their names."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.arg():
                yield node.arg
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name:
                yield node.name
            case ast.alias() if node.asname:
                yield node.asname


def test_a_binding_says_what_it_is_and_not_which_part_it_plays() -> None:
    """`manifest`, `missing_stages`, `rows_by_id`."""
    names = {
        str(file.relative_to(ROOT)): {*bindings(ast.parse(file.read_text()))} & ROLES
        for file in files(*SOURCE, "docs", "tests")
    }
    assert {file: roles for file, roles in names.items() if roles} == ROLES_WITH_REASON


@cache
def imports() -> dict[str, set[str]]:
    """The modules of this package that each module imports; those inside functions count."""
    graph = build_graph("klear", cache_dir=None)
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "klear.training.losses" in arrows["klear.training.rl.trainer"]
    return arrows


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = dict(imports())
    while free := [m for m, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert not {module: sorted(targets & left.keys()) for module, targets in left.items()}


def test_no_two_folders_import_each_other() -> None:
    arrows = imports()

    def folder(module: str) -> str:
        package = (ROOT / Path(*module.split(".")[1:])).is_dir()
        return (module if package else module.rpartition(".")[0]).removeprefix("klear.")

    across = {
        (folder(module), folder(target)) for module, targets in arrows.items() for target in targets
    }
    pairs = {(a, b) for a, b in across if a < b and (b, a) in across}
    assert not pairs


def test_the_vocabulary_of_eval_imports_nothing_of_eval_but_itself() -> None:
    targets = {t for m, ts in imports().items() if m.startswith("klear.eval.records") for t in ts}
    assert {t.split(".")[2] for t in targets if t.startswith("klear.eval.")} == {"records"}


def test_the_flow_knows_exactly_the_named_stages() -> None:
    """Those of the profile that checks its judge, and of the one that a model rates."""
    from klear.configs.loading import load_profile
    from klear.flows.dag import build_dag

    every = {name for profile in ("paper", "replay") for name in build_dag(load_profile(profile))}
    assert every == set(STAGES)
