"""An hour of judging in the RL loop's pattern: does memory, a descriptor or a process stay behind?

    python tests/bench/soak_judge.py [--minutes 60] [--workers 1] [--rest 20]

Each step judges a group of rollouts for several problems: right, wrong, crashing, looping, greedy
and hostile programs, and math answers. Then the judge rests, as it does while the weights are
updated. After every step the parent and all its descendants are measured. The last line is JSON:
the first and the last quarter of the run side by side (medians), the growth between them in
memory and descriptors, zombies, and processes and files left after `close`.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from configs.settings.judging import JudgeRuntime, JudgeSettings  # noqa: E402
from eval.judge.judge import Judge  # noqa: E402
from eval.records import Problem  # noqa: E402

PROBLEMS, ROLLOUTS, TESTS = 8, 8, 16
MEASURED = ("parent_mb", "parent_fds", "children_mb", "children_fds", "processes", "zombies")
SETTLED_STEPS = 3  # importing, first pages, the allocator's first arenas

_ADD = "a, b = map(int, input().split())\n"
PROGRAMS = {
    "right": _ADD + "print(a + b)",
    "wrong": _ADD + "print(a + b if a % 3 else a)",
    "crashing": _ADD + "print(a // 0)",
    "looping": _ADD + "while b >= 0: pass",
    "greedy": _ADD + "x = [0] * (1 << 30)\nprint(a + b)",
    "flooding": "while True: print('x' * 65536)",
    "hostile": "import os, ctypes\nos.mkdir('left')\nopen('left/x', 'w').write('x' * 65536)\n"
    "ctypes.CDLL(None).kill(-1, 9)",
    "threads": "import threading, time\nfor _ in range(50):\n"
    "    threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    + _ADD
    + "print(a+b)",
    "broken": "print(",
}
WEIGHTS = (40, 25, 10, 1, 5, 3, 5, 6, 5)


def rollouts(step: int) -> Iterator[tuple[Problem, str, int]]:
    """One step's answers; numbers differ from step to step, so that nothing is run once."""
    chance = random.Random(step)
    for k in range(PROBLEMS):
        cases = [{"input": f"{i} {k}\n", "output": f"{i + k}\n"} for i in range(TESTS)]
        tests = {"kind": "stdin", "cases": cases, "time_limit_s": 0.5, "memory_mb": 512}
        prompt = f"Add two numbers, step {step}, problem {k}."
        code = Problem.model_validate({"domain": "code", "prompt": prompt, "tests": tests})
        gold = rf"\sqrt{{{step * PROBLEMS + k + 2}}}"
        math = Problem(domain="math", prompt=f"{prompt} Or not.", answer=gold)
        for index in range(ROLLOUTS):
            kind = chance.choices(list(PROGRAMS), WEIGHTS)[0]
            program = f"{PROGRAMS[kind]}\n# {index}"
            yield code, f"<think>{kind}</think>\n```python\n{program}\n```", index
            yield math, rf"<think></think> \boxed{{{gold} + {index % 2}}}", index


def measure() -> dict[str, float]:
    """Megabytes, descriptors, processes and zombies of this process and everything below it."""
    own = psutil.Process()
    found: dict[str, float] = dict.fromkeys(MEASURED, 0)
    found |= {"parent_mb": own.memory_info().rss / 2**20, "parent_fds": own.num_fds()}
    for process in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess), process.oneshot():
            found["processes"] += 1
            if process.status() == psutil.STATUS_ZOMBIE:
                found["zombies"] += 1
            else:
                found["children_mb"] += process.memory_full_info().uss / 2**20
                found["children_fds"] += process.num_fds()
    return found


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(s[name] for s in samples), 2) for name in samples[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rest", type=float, default=20, help="seconds between steps")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="soak-")  # its own, so that what stays behind is the judge's
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    samples: list[dict[str, float]] = []
    verdicts: Counter[str] = Counter()
    started, step = time.monotonic(), 0
    with Judge(JudgeSettings(runtime=JudgeRuntime(workers=options.workers))) as judge:
        while time.monotonic() - started < 60 * options.minutes or step < SETTLED_STEPS + 4:
            verdicts.update(score.verdict for score in judge.judge_many(rollouts(step)))
            step += 1
            if step > SETTLED_STEPS:
                samples.append(measure() | {"minute": (time.monotonic() - started) / 60})
                line = {name: round(value, 1) for name, value in samples[-1].items()}
                print(json.dumps({"step": step, **line}), file=sys.stderr, flush=True)
            time.sleep(options.rest)
    time.sleep(2)
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    quarter = max(1, len(samples) // 4)
    first, last = medians(samples[:quarter]), medians(samples[-quarter:])
    result = {
        "soak": "judge",
        "minutes": round((time.monotonic() - started) / 60, 1),
        "steps": step,
        "judged": sum(verdicts.values()),
        "verdicts": dict(verdicts),
        "first_quarter": first,
        "last_quarter": last,
        "growth": {name: round(last[name] - first[name], 2) for name in first if name != "minute"},
        "most_zombies": max(s["zombies"] for s in samples),
        "processes_left": len(left),
        "files_left": len(os.listdir(folder)),
    }
    shutil.rmtree(folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
