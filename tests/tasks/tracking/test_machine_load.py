"""The load of a stage's processes, under MLflow's names, at a bounded rate, across a resume."""

import json
import subprocess
import sys
from types import SimpleNamespace

from tasks.tracking.machine_load import (
    FILE,
    LONGEST_S,
    MARKER,
    MachineLoad,
    gpu_metrics,
    measure,
    pause_s,
)

BUSY = "text = b'x' * 80_000_000\nprint('ready', flush=True)\ninput()"


def test_a_resumed_stage_goes_on_counting_behind_the_last_whole_line(tmp_path):
    for _ in range(2):
        with MachineLoad(tmp_path / FILE):
            pass
        with (tmp_path / FILE).open("a") as file:
            file.write('{"step": 1, "ti')  # a kill
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()[:-1]]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(0 <= line["metrics"][MARKER] <= 100 for line in lines)


def test_ten_days_are_about_four_thousand_samples():
    elapsed, samples = 0.0, 0
    while elapsed < 10 * 86_400:
        elapsed += pause_s(elapsed)
        samples += 1
    assert 10 * 86_400 / LONGEST_S <= samples < 4_200


def test_the_memory_of_children_is_counted():
    _, before = measure()
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert measure()[1] - before > 70_000_000


def test_every_gpu_is_shown_by_what_the_driver_says():
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(used=8e9, total=10e9),
        nvmlDeviceGetUtilizationRates=lambda i: SimpleNamespace(gpu=40 + i),
    )
    found = gpu_metrics(nvml)
    assert found["system/gpu_1_memory_usage_percentage"] == 80
    assert found["system/gpu_1_utilization_percentage"] == 41
    assert gpu_metrics(None) == {}
