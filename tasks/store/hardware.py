"""What a result was computed on, in words that tell two machines apart: rates hold only there."""

import os
import re
from functools import lru_cache
from pathlib import Path

GPUS_OF_THE_DRIVER = Path("/proc/driver/nvidia/gpus")
CPUS = Path("/proc/cpuinfo")


@lru_cache(maxsize=1)
def this_machine() -> str:
    """`8 × NVIDIA H100 80GB HBM3`, or the cores where there is no GPU: `2 × AMD EPYC`."""
    text = CPUS.read_text(errors="replace") if CPUS.exists() else ""
    name = re.search(r"^model name\s*:(.*)$", text, re.M)
    return gpus() or f"{cores()} × {name[1].strip() if name else 'CPU'}"


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def gpus(folder: Path = GPUS_OF_THE_DRIVER) -> str:
    """The NVIDIA GPUs a child would see; '' for none. `nvidia-smi` takes seconds."""
    texts = [file.read_text(errors="replace") for file in sorted(folder.glob("*/information"))]
    names = [match[1].strip() for t in texts if (match := re.search(r"^Model:(.*)$", t, re.M))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = names[: len([d for d in visible.split(",") if d.strip() not in ("", "-1")])]
    return f"{len(names)} × {names[0]}" if names else ""


def split(hardware: str) -> tuple[int, str]:
    """`8 × NVIDIA H100` → (8, `NVIDIA H100`)."""
    count, cross, name = hardware.partition(" × ")
    return (int(count), name) if cross and count.isdigit() else (1, hardware)
