"""Coverage-guided fuzzing of the extractors, comparators and readers (`make fuzz`).

    python tests/fuzz/guided.py [TARGET …] [--seconds N] [--found FOLDER]

Needs atheris (libFuzzer for Python) in an environment that also sees the project's packages. Each
target runs in a process of its own; one JSON line a target comes last: executions, edges covered,
seconds of CPU, and the inputs that broke a promise, as files in FOLDER.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SLOW_S = 20  # of one input: libFuzzer saves it and goes on
LONGEST = 4096  # bytes of an input
_PULSE = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def fuzz_one(name: str, rest: list[str]) -> None:
    """This process becomes the fuzzer of one target; libFuzzer ends it."""
    import atheris

    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    with atheris.instrument_imports(include=["configs", "eval", "tasks"]):
        from fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *rest], TARGETS[name])
    atheris.Fuzz()


def run(name: str, seconds: int, found: Path) -> dict[str, object]:
    """Fuzz one target in a child; what it printed, as figures."""
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
    executions, edges = (int(pulses[-1][0]), int(pulses[-1][1])) if pulses else (0, 0)
    total = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    broken = sorted(p.name for p in found.glob(f"{name}-*"))
    return {
        "fuzz": name,
        "executions": int(total[1]) if total else executions,
        "edges": edges,
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "ended": done.returncode,
        "broken": broken,
    }


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        fuzz_one(sys.argv[2], sys.argv[3:])
        return 0
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (%(default)s)")
    parser.add_argument("--found", type=Path, default=Path("fuzz-found"))
    arguments = parser.parse_args()
    results = [run(t, arguments.seconds, arguments.found.absolute()) for t in arguments.targets]
    for result in results:
        print(json.dumps(result))
    return int(any(r["broken"] or r["ended"] for r in results))


if __name__ == "__main__":
    sys.exit(main())
