"""CPU, memory and GPU of a stage's processes, sampled while it runs: `logs/system.jsonl`.

The names are those under which MLflow shows system metrics; its own monitor is not used, for it
measures the whole machine and loses what it sends while the server is away. A sample every two
seconds at first, then ever fewer, down to one in five minutes: ten days are four thousand. A
resumed stage goes on in the same file.
"""

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

FILE = "logs/system.jsonl"
MARKER = "system/cpu_utilization_percentage"
SHORTEST_S, LONGEST_S, SAMPLES_AT_FULL_RATE = 2.0, 300.0, 200
MB = 1e6


class MachineLoad:
    """Samples this process and all below it, and once more at the end of the block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._step, self._began = _earlier(path)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="machine-load", daemon=True)
        self._cpu, self._at = measure()[0], time.monotonic()
        self._gpus = _nvml()

    def __enter__(self) -> "MachineLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _work(self) -> None:
        while not self._stop.wait(pause_s(time.time() - self._began)):
            self._sample()

    def _sample(self) -> None:
        (cpu, memory), now = measure(), time.monotonic()
        used = max(cpu - self._cpu, 0.0) / max(now - self._at, 1e-3)
        self._cpu, self._at = cpu, now
        metrics = {
            MARKER: min(100.0, 100 * used / (os.cpu_count() or 1)),
            "system/system_memory_usage_megabytes": memory / MB,
            "system/system_memory_usage_percentage": 100 * memory / psutil.virtual_memory().total,
        }
        with suppress(Exception):  # a driver that fails takes no stage with it
            metrics |= gpu_metrics(self._gpus)
        line = {"step": self._step, "time": time.time(), "metrics": metrics}
        with suppress(OSError):  # the folder of a failed stage may be gone
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            self._step += 1


def pause_s(elapsed: float) -> float:
    """Seconds to the next sample of a stage that has run for `elapsed` seconds."""
    return min(max(SHORTEST_S, elapsed / SAMPLES_AT_FULL_RATE), LONGEST_S)


def measure() -> tuple[float, float]:
    """CPU seconds (ended children included) and resident bytes (shared pages counted in each) of
    this process and everything below it."""
    me = psutil.Process()
    cpu = memory = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            t = process.cpu_times()
            cpu += t.user + t.system + t.children_user + t.children_system
            memory += process.memory_info().rss
    return cpu, memory


def _nvml() -> Any:
    """NVIDIA's management library, ready; None on a machine without."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    except Exception:  # no package, no driver, no permission
        return None


def gpu_metrics(nvml: Any) -> dict[str, float]:
    """Utilisation and memory of every device: in a container nobody knows whose processes run."""
    found: dict[str, float] = {}
    for i in range(nvml.nvmlDeviceGetCount() if nvml else 0):
        device = nvml.nvmlDeviceGetHandleByIndex(i)
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        found[f"system/gpu_{i}_memory_usage_megabytes"] = memory.used / MB
        found[f"system/gpu_{i}_memory_usage_percentage"] = 100 * memory.used / memory.total
        utilisation = nvml.nvmlDeviceGetUtilizationRates(device).gpu
        found[f"system/gpu_{i}_utilization_percentage"] = float(utilisation)
    return found


def _earlier(path: Path) -> tuple[int, float]:
    """The next step, and when the first sample was taken; a line cut by a kill is cut off."""
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines(keepends=True)
    if not lines:
        path.unlink(missing_ok=True)
        return 0, time.time()
    if len(whole := b"".join(lines)) < len(text):
        path.write_bytes(whole)
    return json.loads(lines[-1])["step"] + 1, json.loads(lines[0])["time"]
