"""Answers a second from an endpoint that fails, beside the same endpoint that does not.

    python tests/bench/bench_endpoint.py [--requests 2000] [--latency 1] [--rounds 3]

The server (tests/endpoint/conftest.py) has a process of its own on loopback: 64 requests at a
time, 1 s each, so at most 64 answers a second: the concurrency limit. One request in a hundred
meets a fault (429 with and without Retry-After, 500, hang, cut stream, ...), or nine do. The last
line is JSON; `ratio` is the median over the rounds of the rate with one per cent of faults over
that without any in the same round. A busy machine lowers all rates: compare them with the limit.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from configs.settings.engines import EngineRuntime, EngineSettings, Sampling  # noqa: E402
from tests.endpoint.conftest import FAULTS, MODEL, serving  # noqa: E402
from training.engines.endpoint import EndpointEngine  # noqa: E402
from training.engines.interface import Request  # noqa: E402

CONCURRENCY = 64
FAULTS_OF_HUNDRED = (0, 1, 9)


def serve(of_hundred: int, latency_s: float) -> None:
    """Body of the server's process: the last `of_hundred` of every hundred questions fail once,
    each kind in turn. Prints its URL, ends when its standard input does."""

    def choose(prompt: str, attempt: int) -> str:
        number = int(prompt.split()[1])
        kind = FAULTS[(number // 100 + number) % len(FAULTS)]
        return kind if attempt == 0 and number % 100 >= 100 - of_hundred else ""

    with serving(choose, latency_s=latency_s) as endpoint:
        print(endpoint.url, flush=True)
        sys.stdin.read()


def measured(of_hundred: int, count: int, latency_s: float) -> tuple[float, float]:
    """Answers a second, and CPU milliseconds of this process an answer."""
    command = [sys.executable, __file__, "--serve", str(of_hundred), "--latency", str(latency_s)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, cwd=ROOT) as server:
        assert server.stdout
        settings = EngineSettings(
            kind="openai", model=MODEL, base_url=server.stdout.readline().strip(), api_key_env="",
            runtime=EngineRuntime(concurrency=CONCURRENCY, silence_timeout_s=5 * latency_s),
        )  # fmt: skip
        asked = [
            Request(problem_id=f"p{i}", index=0, prompt=f"question {i}", seed=i)
            for i in range(count)
        ]
        began, cpu = time.monotonic(), time.process_time()
        answered = {s.problem_id for s in EndpointEngine(settings, Sampling()).answer(asked)}
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        server.communicate()  # closes its input
    assert len(answered) == count
    return count / seconds, 1_000 * cpu / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--latency", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.latency)
        return
    rounds = [
        [measured(n, options.requests, options.latency) for n in FAULTS_OF_HUNDRED]
        for _ in range(options.rounds)
    ]
    clean, one, nine = (median(rate for rate, _ in column) for column in zip(*rounds, strict=True))
    result = {
        "bench": "endpoint",
        "ours": round(one, 1),
        "peer": {
            "concurrency limit": round(CONCURRENCY / options.latency, 1),
            "without faults": round(clean, 1),
            "nine per cent of faults": round(nine, 1),
        },
        "unit": "answers/s",
        "ratio": round(median(r[1][0] / r[0][0] for r in rounds), 3),
        "setup": f"{options.requests} requests, {CONCURRENCY} at a time, {options.latency:g} s "
        f"each, medians of {options.rounds} rounds; the client takes "
        f"{median(r[1][1] for r in rounds):.1f} CPU ms an answer; load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
