"""The load of a stage's processes, under MLflow's names, at a bounded rate, across a resume."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil

from tasks.machine_load import (
    FILE,
    LONGEST_S,
    MARKER,
    MachineLoad,
    cpu_seconds,
    gpu_metrics,
    pause_s,
    resident_bytes,
    tree,
)

BUSY = "import time\ntext = b'x' * 80_000_000\nprint('ready', flush=True)\ntime.sleep(600)"


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_short_stage_has_one_sample_and_a_resumed_one_goes_on_counting(tmp_path):
    told: list[int] = []
    for _ in range(3):
        with MachineLoad(tmp_path / FILE, after=lambda: told.append(1)):
            pass
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2]
    assert len(told) == 3
    assert all(0 <= line["metrics"][MARKER] <= 100 for line in lines(tmp_path))


def test_a_line_cut_by_a_kill_is_no_sample(tmp_path):
    with MachineLoad(tmp_path / FILE, after=lambda: None):
        pass
    with (tmp_path / FILE).open("a") as file:
        file.write('{"step": 1, "ti')
    with MachineLoad(tmp_path / FILE, after=lambda: None):
        pass
    assert [line["step"] for line in lines(tmp_path)] == [0, 1]


def test_ten_days_are_about_four_thousand_samples():
    elapsed, samples = 0.0, 0
    while elapsed < 10 * 86_400:
        pause = pause_s(elapsed)
        assert 0 < pause <= LONGEST_S
        elapsed += pause
        samples += 1
    assert 10 * 86_400 / LONGEST_S <= samples < 4_200


def test_the_memory_of_children_is_counted_and_that_of_strangers_is_not():
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        pids = {p.pid for p in tree()}
        assert child.pid in pids
        assert 1 not in pids
        alone = resident_bytes([psutil.Process()])
        assert resident_bytes(tree()) - alone > 70_000_000
    finally:
        child.kill()
        child.wait()


def test_processes_that_end_meanwhile_do_no_harm():
    child = subprocess.Popen([sys.executable, "-c", ""])
    gone = psutil.Process(child.pid)
    child.wait()
    assert cpu_seconds([gone]) == 0.0
    assert resident_bytes([gone]) == 0.0


class Nvml:
    """Two devices: one of ours, one that shows the host's process numbers."""

    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda i: i)
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: SimpleNamespace(used=8e9, total=10e9))
    nvmlDeviceGetUtilizationRates = staticmethod(lambda i: SimpleNamespace(gpu=40 + i))

    @staticmethod
    def nvmlDeviceGetComputeRunningProcesses(i):
        ours = SimpleNamespace(pid=7, usedGpuMemory=2e9)
        strangers = SimpleNamespace(pid=70_001, usedGpuMemory=6e9)
        return [ours, strangers] if i == 0 else [strangers]


def test_a_gpu_shows_the_memory_of_our_processes_where_the_driver_knows_them():
    found = gpu_metrics(Nvml, {7, 8})
    assert found["system/gpu_0_memory_usage_megabytes"] == 2000
    assert found["system/gpu_1_memory_usage_megabytes"] == 8000
    assert found["system/gpu_1_memory_usage_percentage"] == 80
    assert found["system/gpu_1_utilization_percentage"] == 41
    assert gpu_metrics(None, {7}) == {}
