"""Load tests in two sizes: each size in a process of its own, then the growth between them.

A part is a function of its size that returns figures of its own; measured around it are CPU seconds
(with children that have ended), seconds, and the peak of the process's memory. `slope` is the
exponent between the sizes: 1 is linear, 2 quadratic. What a process costs anyway (imports) is
measured with the size 0 and taken off.
"""

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping

from own_process import in_a_process

Part = Callable[[int], Mapping[str, float]]


def cpu_seconds() -> float:
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF,
                                                      resource.RUSAGE_CHILDREN))  # fmt: skip
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def _inside(part: Part, size: int) -> dict[str, float]:
    began, cpu = time.monotonic(), cpu_seconds()
    figures = part(size)
    return {
        "cpu_s": round(cpu_seconds() - cpu, 2),
        "seconds": round(time.monotonic() - began, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        **{name: round(value, 4) for name, value in figures.items()},
    }


def slope(small: float, large: float, times: float) -> float:
    """The exponent of the growth when the size grows by `times`."""
    return round(math.log(max(large, 1e-9) / max(small, 1e-9)) / math.log(times), 2)


def run(what: str, parts: Mapping[str, tuple[Part, int]], times: int = 4) -> None:
    """Measure the chosen parts at a `times`-th of their size and at their size; one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=parts, action="append", help="only this one (repeatable)")
    os.environ["OMP_NUM_THREADS"] = "1"
    figures = {}
    for name in parser.parse_args().part or parts:
        part, size = parts[name]
        sizes = (0, size // times, size)
        none, small, large = (in_a_process(_inside, part, n) for n in sizes)
        cpu = [max(m["cpu_s"] - none["cpu_s"], 0.01) for m in (small, large)]
        memory = [max(m["peak_mb"] - none["peak_mb"], 1) for m in (small, large)]
        figures[name] = {
            "size": size, "slope_cpu": slope(*cpu, times), "slope_memory": slope(*memory, times),
            "empty": none, "small": small, "large": large,
        }  # fmt: skip
        print(name, json.dumps(figures[name]), file=sys.stderr, flush=True)
    print(json.dumps({"load": what, "parts": figures}))
