"""A result says what it was computed on."""

from pathlib import Path

import pytest

from configs.settings.base import Settings
from tasks.stage.run import Run, active
from tasks.stage.stage import Metrics, stage
from tasks.store.hardware import gpus, split, this_machine
from tasks.store.store import Store


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   12\n")
    return tmp_path


def test_gpus_are_counted_and_named_by_the_driver(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus(driver) == "2 × NVIDIA H200"
    assert gpus(driver / "nothing") == ""


def test_a_name_is_read_back_as_count_and_device():
    assert split("8 × NVIDIA H100 80GB HBM3") == (8, "NVIDIA H100 80GB HBM3")
    assert split("") == (1, "")


class Nothing(Settings):
    pass


@stage(version=1)
def idle(out: Path, *, settings: Nothing) -> Metrics:
    (out / "rows").write_text("")
    return {}


def test_every_published_result_names_its_machine(tmp_path):
    store = Store(tmp_path)
    with active(Run(store=store)):
        made = idle(settings=Nothing())

    assert store.manifest(made).hardware == this_machine()
    assert split(this_machine())[0] >= 1
