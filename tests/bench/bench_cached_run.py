"""Seconds of a tiny run in which every stage is cached, against the seconds its stages took.

    python tests/bench/bench_cached_run.py [PROFILE]

Needs `klear up`. The first run computes what is missing (minutes); the second is timed.
"""

import json
import re
import subprocess
import sys
import time

from klear.configs.machine import load_machine

KLEAR = [sys.executable, "-m", "klear.flows.cli.main", "run"]


def run(profile: str) -> tuple[str, float]:
    """What `klear run PROFILE` printed, and how long it took from the outside."""
    began = time.perf_counter()
    done = subprocess.run([*KLEAR, profile], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout, time.perf_counter() - began


def seconds_of_stages(report: str) -> float:
    """Sum over the stages of this run of the seconds their manifests record."""
    store = load_machine().store
    found = re.search(r"report/(\w+)/report\.html", report)
    if not found:
        sys.exit("the run printed no report")
    pending, seen = [("report", found.group(1))], set()
    seconds = 0.0
    while pending:
        stage, key = pending.pop()
        if (stage, key) in seen:
            continue
        seen.add((stage, key))
        manifest = json.loads((store / stage / key / "manifest.json").read_text())
        seconds += manifest["seconds"]
        pending += [(i["stage"], i["key"]) for i in manifest["inputs"]]
    return seconds


def main() -> None:
    profile = sys.argv[1] if len(sys.argv) > 1 else "tiny"
    run(profile)
    output, ours = run(profile)
    if "every stage cached" not in output:
        sys.exit("the second run computed something:\n" + output)
    peer = seconds_of_stages(output)
    line = {
        "bench": "cached_run",
        "ours": round(ours, 2),
        "peer": {"the same stages computed": round(peer, 1)},
        "unit": "s",
        "ratio": round(peer / ours, 1),
        "setup": f"klear run {profile}, second run, wall seconds with interpreter start",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
