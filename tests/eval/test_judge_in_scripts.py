"""Where people use the judge: a script, a notebook, a thread."""

import subprocess
import sys
from pathlib import Path

USE = """
from klear.eval.judge.judge import Judge
from klear.eval.records import Problem

def use():
    problem = Problem(id="sum", domain="math", prompt="?", answer=r"\\frac{x+1}{2}", source="s")
    with Judge() as judge:
        print(judge.judge(problem, r"<think>.</think> \\boxed{\\frac{1+x}{2}}").verdict)
"""
GUARDED = f'{USE}\nif __name__ == "__main__":\n    use()\n'
IN_A_THREAD = f"""{USE}
import threading
if __name__ == "__main__":
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
"""


def run(*words: object, typed: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=300)


def test_a_script_with_a_guard_judges_formulas_in_a_thread_too(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(IN_A_THREAD)
    done = run(script)
    assert (done.stdout, done.returncode) == ("AC\n", 0), done.stderr


def test_a_notebook_needs_no_guard() -> None:
    """As in its kernel, the code comes from no file."""
    done = run("-c", f"{USE}\nuse()\n")
    assert (done.stdout, done.returncode) == ("AC\n", 0), done.stderr


def test_a_script_without_a_guard_ends_with_the_line_to_add(tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(f"{USE}\nuse()\n")
    done = run(script)
    assert (done.stdout, done.returncode) == ("", 1), "no verdict"
    assert f"each imports {script}" in done.stderr
    assert 'put `if __name__ == "__main__":` above what it does' in done.stderr
    assert done.stderr.count("Traceback") == 1, "one, of the script itself"


def test_a_script_from_standard_input_is_told_to_come_from_a_file() -> None:
    done = run("-", typed=GUARDED)
    assert done.stderr.endswith("each imports <stdin>; put that into a file\n")
