"""The house rules a linter does not know (CONTRIBUTING.md)."""

import ast
import subprocess
from pathlib import Path

import pytest

from configs.stage_names import STAGES
from tasks.stage import Stage

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("configs", "eval", "training", "tasks", "flows", "deployments")


def files(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py"))


def test_no_file_is_longer_than_300_lines() -> None:
    sizes = {f: len(f.read_text().splitlines()) for f in files(*SOURCE, "tests")}
    assert not {str(f.relative_to(ROOT)): n for f, n in sizes.items() if n > 300}


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "common", "helpers", "helper", "misc", "core", "manager"}
    shadowing = {"math", "code", "types"}
    assert not [f.name for f in files(*SOURCE) if f.stem in empty | shadowing]


def test_every_module_says_what_it_is() -> None:
    silent = [f for f in files(*SOURCE) if not ast.get_docstring(ast.parse(f.read_text()))]
    assert not [str(f.relative_to(ROOT)) for f in silent]


def test_the_tree_names_every_module() -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("## The tree")[2]
    modules = [f for f in files(*SOURCE) if f.name != "__init__.py"]
    assert not [str(f.relative_to(ROOT)) for f in modules if f.name not in tree]


def test_the_flow_knows_exactly_the_named_stages() -> None:
    import flows.data
    import flows.evaluate
    import flows.train
    from tasks.evaluate import evaluate
    from tasks.report import report

    named = {
        stage.name
        for module in (flows.data, flows.train)
        for stage in vars(module).values()
        if isinstance(stage, Stage) and stage.name != "rl"
    }
    assert named | {f"{evaluate.name}_{c}" for c in ("base", "sft", "rl_math", "rl_code")} | {
        report.name
    } == set(STAGES)


@pytest.mark.parametrize("name", ["demo", "test", "check", "bench", "clean"])
def test_the_makefile_has_the_targets_of_the_readme(name: str) -> None:
    done = subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
