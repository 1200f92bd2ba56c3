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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from configs.settings.engines import EngineRuntime, EngineSettings, Sampling  # noqa: E402
from tests.endpoint.conftest import FAULTS, MODEL, Choose, serving  # noqa: E402
from training.engines.endpoint import EndpointEngine  # noqa: E402
from training.engines.interface import Request  # noqa: E402

CONCURRENCY, SIZE = 64, 400
FAULTS_OF_HUNDRED = (0, 1, 9)


class Round(NamedTuple):
    """One run of all requests."""

    rate: float
    """Answers a second."""
    client_ms: float
    """CPU milliseconds of this process, an answer."""


def fails(of_hundred: int) -> Choose:
    """The last `of_hundred` of every hundred questions fail once, each kind in turn."""

    def choose(prompt: str, attempt: int) -> str:
        number = int(prompt.split()[1])
        kind = FAULTS[(number // 100 + number) % len(FAULTS)]
        return kind if attempt == 0 and number % 100 >= 100 - of_hundred else ""

    return choose


def serve(of_hundred: int, latency_s: float) -> None:
    """Body of the server's process: prints its URL, ends when its standard input does."""
    with serving(fails(of_hundred), latency_s=latency_s, size=SIZE) as endpoint:
        print(endpoint.url, flush=True)
        sys.stdin.read()


@contextmanager
def served(of_hundred: int, latency_s: float) -> Iterator[str]:
    """The URL of a server in a process of its own."""
    command = [sys.executable, __file__, "--serve", str(of_hundred)]
    command += ["--latency", str(latency_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout
        yield server.stdout.readline().strip()
        server.communicate()  # closes its input


def measured(of_hundred: int, count: int, latency_s: float) -> Round:
    with served(of_hundred, latency_s) as url:
        settings = EngineSettings(
            kind="openai", model=MODEL, base_url=url, api_key_env="",
            runtime=EngineRuntime(concurrency=CONCURRENCY, silence_timeout_s=5 * latency_s),
        )  # fmt: skip
        asked = (
            Request(problem_id=f"p{i}", index=0, prompt=f"question {i}", seed=i)
            for i in range(count)
        )
        began, cpu = time.monotonic(), time.process_time()
        answered = list(EndpointEngine(settings, Sampling()).answer(asked))
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    assert len({s.problem_id for s in answered}) == len(answered) == count
    return Round(count / seconds, 1_000 * cpu / count)


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
        {n: measured(n, options.requests, options.latency) for n in FAULTS_OF_HUNDRED}
        for _ in range(options.rounds)
    ]
    clean, one, nine = (median(r[n].rate for r in rounds) for n in FAULTS_OF_HUNDRED)
    ratio = median(r[1].rate / r[0].rate for r in rounds)
    client = median(r[1].client_ms for r in rounds)
    result = {
        "bench": "endpoint",
        "ours": round(one, 1),
        "peer": {
            "concurrency limit": round(CONCURRENCY / options.latency, 1),
            "without faults": round(clean, 1),
            "nine per cent of faults": round(nine, 1),
        },
        "unit": "answers/s",
        "ratio": round(ratio, 3),
        "setup": f"{options.requests} requests, {CONCURRENCY} at a time, {options.latency:g} s "
        f"each, medians of {options.rounds} rounds; the client takes {client:.1f} CPU ms "
        f"an answer; load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
