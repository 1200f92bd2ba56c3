"""Coverage-guided fuzzing of the properties in this folder (`make fuzz`).

    python tests/fuzz/guided.py [PROPERTY …] [--seconds N] [--found FOLDER]

Every property is a test with `@given`; Hypothesis turns the fuzzer's bytes into its arguments.
Needs atheris (libFuzzer for Python) in an environment that also sees the project's packages. Each
property runs in a process of its own; one JSON line a property comes last: executions, edges
covered, seconds of CPU, and the inputs that broke it, as files in FOLDER.
"""

import argparse
import importlib
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("test_model_texts", "test_rows_and_files", "test_settings")
SLOW_S = 20  # of one input: libFuzzer saves it and goes on
LONGEST = 4096  # bytes of an input
_PULSE = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def properties() -> dict[str, Callable[[bytes], Any]]:
    """What takes bytes and raises when a promise is broken, by the name of its test."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    modules = [importlib.import_module(f"fuzz.{name}") for name in MODULES]
    tests = {name: test for module in modules for name, test in vars(module).items()}
    return {
        name: test.hypothesis.fuzz_one_input
        for name, test in tests.items()
        if name.startswith("test_") and hasattr(test, "hypothesis")
    }


def fuzz_one(name: str, rest: list[str]) -> None:
    """This process becomes the fuzzer of one property; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["configs", "eval", "tasks"]):
        target = properties()[name]
    atheris.Setup([sys.argv[0], *rest], target)
    atheris.Fuzz()


def run(name: str, seconds: int, found: Path) -> dict[str, object]:
    """Fuzz one property in a child; what it printed, as figures."""
    corpus = found / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, __file__, "--inside", name, f"-max_total_time={seconds}",
         f"-max_len={LONGEST}", f"-timeout={SLOW_S}", "-rss_limit_mb=4096", "-report_slow_units=1",
         f"-artifact_prefix={found}/{name}-", "-print_final_stats=1", str(corpus)],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (found / f"{name}.log").write_text(done.stdout + done.stderr)
    pulses = _PULSE.findall(done.stderr)
    total = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    return {
        "fuzz": name,
        "executions": int(total[1]) if total else 0,
        "edges": int(pulses[-1][1]) if pulses else 0,
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "ended": done.returncode,
        "broken": sorted(p.name for p in found.glob(f"{name}-*")),
    }


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        fuzz_one(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(properties()), metavar="PROPERTY")
    parser.add_argument("--seconds", type=int, default=60, help="for each (%(default)s)")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"))
    arguments = parser.parse_args()
    results = [run(n, arguments.seconds, arguments.found.absolute()) for n in arguments.names]
    for result in results:
        print(json.dumps(result))
    return int(any(r["broken"] or r["ended"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
