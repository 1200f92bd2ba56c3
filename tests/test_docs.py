"""Every command and snippet of the pages works, every link leads somewhere, and every message that
is explained is one of the program's."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs import hooks
from klear.configs.loading import load_profile
from klear.configs.settings.judging import JudgeSettings
from klear.eval.judge.files import judge_files
from klear.flows.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
CODE = ("configs", "eval", "training", "tasks", "flows")
DOCS = sorted((ROOT / "docs").glob("*.md"))
NAMES = (*hooks.SOURCES.values(), "SECURITY.md")
PAGES = [*(ROOT / name for name in NAMES), *DOCS]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
SETS = r"(?:[A-Z_]+=\S* )*"
ONLY_READ = {
    "up": "starts servers: tests/flows/test_servers.py",
    "down": "ends servers: tests/flows/test_servers.py",
    "serve": "stays in the foreground: tests/deployments/test_compose_servers.py",
    "run": "takes minutes, or a GPU: tests/flows/test_pipeline.py",
    "eval": "takes a model: tests/endpoint/test_eval_command.py",
    "lineage": "takes results: tests/flows/test_store_command.py",
    "doctor": "is about this machine: tests/flows/test_doctor.py",
    "ablate NAME": "takes hours: tests/flows/test_ablation.py",
}
"""Commands that are only parsed here, and the test that runs them."""


def blocks(page: Path, language: str = "") -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(page: Path) -> list[str]:
    """The lines of shell blocks, fenced or indented, without what is set before them."""
    fenced = [line for block in blocks(page) for line in block.splitlines()]
    indented = re.findall(r"^    (\S.*)$", page.read_text(), re.M)
    lines = [re.sub(rf"^{SETS}", "", line) for line in (*fenced, *indented)]
    return [line for line in lines if re.match(r"(klear|make|python) [\w.]", line)]


EVERY = {line: page for page in PAGES for line in commands(page)}
KLEAR = {line: shlex.split(line, comments=True)[1:] for line in EVERY if line.startswith("klear ")}


def is_only_read(words: list[str]) -> bool:
    named = words[0] == "ablate" and len(words) > 1 and "--plan" not in words
    return words[0] in ONLY_READ or named


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, a home of its own and the profile of the page of concepts."""
    monkeypatch.setenv("KLEAR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (example,) = blocks(ROOT / "docs/concepts.md", "yaml")
    (tmp_path / "mine.yaml").write_text(example)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    return tmp_path


@pytest.mark.parametrize("words", KLEAR.values(), ids=KLEAR)
def test_a_command_is_one_of_klear(words: list[str]) -> None:
    assert words[0] in COMMANDS
    hooks.app().parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("line", [line for line, words in KLEAR.items() if not is_only_read(words)])
def test_a_command_that_needs_no_server_does_what_it_says(folder: Path, line: str, capsys) -> None:
    assert main(KLEAR[line]) == 0
    output = "".join(capsys.readouterr())
    promised = {"judge": "AC 2, WA 1", "--out clean": "2 kept, 1 rejected", "--near": "near: "}
    assert all(text in output for words, text in promised.items() if f" {words}" in line)


def test_other_commands_are_targets_of_make_or_scripts_that_are_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    others = [shlex.split(line, comments=True) for line in EVERY if line not in KLEAR]
    assert {w[1].partition("=")[0] for w in others if w[0] == "make"} <= set(targets)
    scripts = [w[1] for w in others if w[0] == "python"]
    assert scripts
    assert not [script for script in scripts if not (ROOT / script).is_file()]
    for reason in ONLY_READ.values():
        assert (ROOT / reason.rpartition(" ")[2]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    generated = {ROOT / "docs" / name for name in hooks.GENERATED}
    for _, _, target, _ in hooks.LINK.findall(page.read_text()):
        path = Path(os.path.normpath(page.parent / target))
        assert path.exists() or path in generated, target


def test_the_site_builds_without_a_warning_and_has_every_setting_and_command(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=os.environ | paths)
    assert done.returncode == 0, done.stderr
    settings = (tmp_path / "configuration/index.html").read_text()
    some = ("lm_weight", "KLEAR_HOME", "stop_after_timeouts")
    assert all(f"<code>{name}</code>" in settings for name in some)
    assert all(f"klear {name}" in (tmp_path / "cli/index.html").read_text() for name in COMMANDS)


def test_a_message_that_is_explained_is_one_of_the_program() -> None:
    """… stands for what an f-string fills in."""
    messages = set()
    for file in (f for folder in CODE for f in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values]
                messages.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                messages.add(node.value)
    explained = re.findall(r"^### `(.*)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.M)
    assert len(explained) >= 20
    assert not [text for text in explained if not any(text in message for message in messages)]


def test_the_profile_of_the_page_is_one(folder: Path) -> None:
    profile = load_profile("mine.yaml")
    assert profile.collect.sources[0].name == "mine"
    assert profile.distill.engine.runtime.approve_above == 50
    assert profile.base.model == load_profile("single_gpu").base.model


def test_the_answers_of_the_page_are_judged_right(tmp_path: Path) -> None:
    for name, text in zip("PS", blocks(ROOT / "docs/judge.md", "json"), strict=True):
        (tmp_path / f"{name}.jsonl").write_text(text)
    paths = (tmp_path / f"{name}.jsonl" for name in ("P", "S", "scores"))
    assert judge_files(*paths, JudgeSettings()) == ({"AC": 5}, [])


def test_a_day_on_one_gpu_is_a_day_by_the_plan(folder: Path, capsys) -> None:
    assert main(["plan", "docs/examples/one_gpu_one_day.yaml"]) == 0
    hours = re.search(r"to compute; ≈(\d+) h", capsys.readouterr().out)
    assert hours
    assert int(hours[1]) <= 24
