"""A result says what it was computed on."""

from pathlib import Path

import pytest

from tasks.store.hardware import gpus, split


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
