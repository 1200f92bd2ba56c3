"""What works on a GPU, how fast, and what does not: `make gpu-check TIER=0`.

    python -m tests.gpu.check 0 [--only TEXT] [--log GPU.jsonl] [--minutes 0]

A tier is a module `tests.gpu.tierN` or `tests.gpu.pocket` with a list CASES (another module may be
named in its place). Every case runs in a process of its own with a time limit, so neither a CUDA
error nor a hang takes others with it. In the list's order the light ones that follow each other run
beside each other, and those that measure one at a time. Each
ends as one JSON line in the log, at once, so that what was found survives whatever comes later. A
case whose needs the machine lacks is skipped by name. Exit code 1 when one failed.
"""

import argparse
import ctypes
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "transformers", "trl", "accelerate", "datasets", "numpy", "vllm",
            "flash-attn", "flash-attn-3", "kernels")  # fmt: skip
PR_SET_PDEATHSIG = 1
CORES_A_CASE = 4
SLOWER = 10  # so many times the limit without a GPU
PATHS = (".package", ".", "tests", "tests/bench")
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "VLLM_NO_USAGE_STATS": "1",
               "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1",
               "OMP_NUM_THREADS": str(min(CORES_A_CASE, os.cpu_count() or 1))}  # fmt: skip
PROBE = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


class Skip(Exception):
    """Raised by a case that finds out by itself that it cannot run here; says why."""


class Report:
    """What a case is told (device, limit, folders) and what it finds; figures outlive a crash."""

    def __init__(
        self, device: str, limit_s: float, scratch: Path, shared: Path, file: Path
    ) -> None:
        self.device, self.limit_s = device, limit_s
        self.scratch, self.shared, self._file = scratch, shared, file
        self._figures: dict[str, Any] = {}
        self._missed: list[str] = []

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def figure(self, **values: float | str) -> None:
        for name, value in values.items():
            self._figures[name] = float(f"{value:.4g}") if isinstance(value, float) else value
        self._write()

    def bound(self, name: str, value: float, at_most: float) -> None:
        """A figure that must not be larger; the case goes on, and fails at its end. NaN fails."""
        self.figure(**{name: value})
        if not value <= at_most:
            self._missed.append(f"{name} is {value:.3g}, not at most {at_most:g}")
            self._write()

    def goal(
        self, name: str, value: float, *, at_most: float = math.inf, at_least: float = 0.0
    ) -> None:
        """A figure with a goal for a GPU; elsewhere only the figure."""
        self.figure(**{name: value})
        if self.cuda and not at_least <= value <= at_most:
            self._missed.append(f"{name} is {value:.3g}; the goal is {at_least:g} to {at_most:g}")
        self._write()

    def _write(self, **more: Any) -> None:
        line = {"figures": self._figures, "reason": "; ".join(self._missed), **more}
        self._file.write_text(json.dumps(line))

    def skip(self, reason: str) -> None:
        self._write(result="skip", reason=reason)

    def end(self, error: str = "") -> None:
        reasons = [*self._missed, *filter(None, [error])]
        self._write(result="fail" if reasons else "pass", reason="; ".join(reasons))


@dataclasses.dataclass(frozen=True)
class Case:
    """`seconds` is its limit on a GPU, `needs` are `cuda`, `2 GPUs`, or modules that must be
    installed; `alone`: it measures, so nothing may run beside it."""

    name: str
    work: Callable[[Report], None]
    seconds: float
    needs: tuple[str, ...] = ()
    alone: bool = False


def run_here(
    module: str, name: str, runner: int, device: str, limit_s: float, folders: list[Path]
) -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # end with the runner
    if os.getppid() != runner:  # which ended before
        return 1
    (case,) = (c for c in cases_of(module) if c.name == name)
    report = Report(device, limit_s, *folders)
    try:
        case.work(report)
    except Skip as why:
        report.skip(str(why))
        return 0
    except BaseException as error:
        traceback.print_exc()
        message = str(error).strip().splitlines() or [""]
        report.end(f"{type(error).__name__}: {message[0][:300]}")
        return 1
    report.end()
    return 0


def cases_of(module: str) -> list[Case]:
    return importlib.import_module(module).CASES


def environment() -> dict[str, str]:
    paths = [*(str(ROOT / path) for path in PATHS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def output_of(*command: str) -> str:
    """What a command prints; nothing where it is missing or fails."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=180,
            check=True,
        ).stdout.strip()  # fmt: skip
    return ""


@cache
def machine() -> dict[str, Any]:
    """What stands in every line: GPU (None without CUDA), driver, versions, commit."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    gpus = 0 if hidden else int(output_of(sys.executable, "-c", PROBE) or 0)
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    named = output_of(*query).splitlines() if gpus else []
    gpu, _, driver = (named[0] if named else "unknown").partition(", ")
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    kept = ROOT / "COMMIT"  # of the bundle, which has no history
    commit = kept.read_text().strip() if kept.exists() else output_of("git", "rev-parse", "HEAD")
    return {
        "gpu": gpu if gpus else None,
        "gpus": gpus,
        "driver": driver if gpus else None,
        "versions": versions,
        "commit": commit,
    }


def lacking(case: Case, gpus: int) -> str:
    """Why the case cannot run here; nothing where it can."""
    for need in case.needs:
        if need == "cuda" and not gpus:
            return "needs CUDA"
        if need == "2 GPUs" and gpus < 2:
            return f"needs two GPUs, found {gpus}"
        if need not in ("cuda", "2 GPUs") and importlib.util.find_spec(need) is None:
            return f"{need} is not installed"
    return ""


def run_case(module: str, case: Case, shared: Path, deadline: float) -> dict[str, Any]:
    """The line of one case, run in a process of its own."""
    outcome = {"result": "skip", "reason": lacking(case, machine()["gpus"]), "figures": {}}
    began, limit = time.monotonic(), case.seconds * (1 if machine()["gpus"] else SLOWER)
    left = min(limit, deadline - began)
    if not outcome["reason"] and left < min(limit, 20):
        outcome["reason"] = "no time was left"
    if not outcome["reason"]:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            outcome = _in_a_process(module, case, shared, Path(folder), left)
    seconds = round(time.monotonic() - began, 1)
    return {"case": case.name, "tier": module.rpartition(".")[2], **outcome, "seconds": seconds,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **machine()}  # fmt: skip


def _in_a_process(
    module: str, case: Case, shared: Path, folder: Path, limit_s: float
) -> dict[str, Any]:
    device, result = "cuda" if machine()["gpus"] else "cpu", folder / "result.json"
    command = [sys.executable, "-m", "tests.gpu.check", module, "--case", case.name]
    command += ["--runner", os.getpid(), "--device", device]  # type: ignore[list-item]
    command += ["--limit", limit_s, "--folders", folder, shared, result]  # type: ignore[list-item]
    seen = environment()
    if "2 GPUs" not in case.needs:  # with several, transformers spreads a batch over all
        seen["CUDA_VISIBLE_DEVICES"] = seen.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, env=seen, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        died = ""
        try:
            code = process.wait(limit_s)
            if code < 0:
                died = f"ended by {signal.Signals(-code).name}"
        except subprocess.TimeoutExpired:
            died = f"not done after {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # what it started, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcome: dict[str, Any] = {"figures": {}, "reason": ""}
    with suppress(OSError, ValueError):
        outcome = json.loads(result.read_text())
    if "result" not in outcome or died:
        died = died or "ended without a result"
        outcome |= {"result": "fail", "reason": "; ".join(filter(None, [died, outcome["reason"]]))}
    if outcome["result"] == "fail":
        text = (folder / "output").read_text(errors="replace")
        print(f"--- {case.name}\n{text[-3000:].strip()}\n---", flush=True)
    return outcome


def run_tier(module: str, only: list[str], minutes: float) -> Iterator[dict[str, Any]]:
    """The lines of all cases of a tier, as they end."""
    cases = [case for case in cases_of(module) if any(text in case.name for text in only)]
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    beside = max(1, (os.cpu_count() or 1) // CORES_A_CASE)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as shared:
        for alone, chosen in groupby(cases, key=lambda case: case.alone):
            with ThreadPoolExecutor(1 if alone else beside) as pool:
                submitted = [
                    pool.submit(run_case, module, c, Path(shared), deadline) for c in chosen
                ]
                yield from (done.result() for done in as_completed(submitted))


def table(lines: list[dict[str, Any]]) -> str:
    """One row a case: result, name, seconds, and its figures or the reason."""
    wide, rows = max(len(line["case"]) for line in lines), []
    for line in lines:
        figures = ", ".join(f"{n} {v}" for n, v in line["figures"].items())
        remark = "; ".join(filter(None, [line["reason"], figures]))
        rows.append(
            f"{line['result']:4}  {line['case']:{wide}}  {line['seconds']:6.1f} s  {remark}"
        )
    counts = {r: sum(line["result"] == r for line in lines) for r in ("pass", "fail", "skip")}
    where = machine()["gpu"] or "no GPU"
    rows.append(", ".join(f"{n} {r}" for r, n in counts.items()) + f", on {where}")
    return "\n".join(rows)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tier", help="0 to 3, pocket, or a module with CASES")
    parser.add_argument("--only", nargs="*", default=[""], help="cases with one of these texts")
    parser.add_argument("--log", type=Path, default=ROOT / "GPU.jsonl")
    parser.add_argument("--minutes", type=float, default=0.0, help="for all; 0: no limit")
    for inner in ("--case", "--device"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    parser.add_argument("--runner", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--folders", nargs=3, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    module = f"tier{options.tier}" if options.tier.isdigit() else options.tier
    module = module if "." in module else f"tests.gpu.{module}"
    if options.case:
        here = options.case, options.runner, options.device, options.limit, options.folders
        return run_here(module, *here)
    lines: list[dict[str, Any]] = []
    for line in run_tier(module, options.only, options.minutes):
        lines.append(line)
        with options.log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(table([line]).splitlines()[0], flush=True)
    if not lines:
        parser.error(f"no case of {module} is called like {options.only}")
    print("\n" + table(lines))
    return int(any(line["result"] == "fail" for line in lines))


if __name__ == "__main__":
    from tests.gpu import check  # the module that the tiers import, not a second one

    sys.exit(check.main(sys.argv[1:]))
