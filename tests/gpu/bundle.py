"""T0 for a machine with a GPU and no network: one tar with the tree and the wheels that it needs.

    python tests/gpu/bundle.py [--python 3.12] [--out build/gpu-bundle.tar]

There is taken for granted: that Python with torch. The wheels are what the packages below need in
turn, at the versions of requirements-gpu.lock, without what no case imports. They are packed again
without their own compression, which xz then does better over all of them: half the size.
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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("transformers", "trl", "accelerate", "datasets", "numpy", "pydantic-settings", "orjson",
          "pebble", "pytest", "hypothesis")  # fmt: skip
LEFT_OUT = ("torch", "hf-xet", "typer")
"""There already, or only asked for by command lines and downloads."""
TESTS = ("tests/gpu/", "tests/training/", "tests/cluster/fixed_answers.py",
         "tests/bench/own_process.py", "tests/bench/bench_lm_head.py",
         "tests/bench/bench_rl_step.py")  # fmt: skip
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_24_x86_64",
             "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")  # fmt: skip
LIMIT_MIB = 60
XZ = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wheels(python: str) -> list[str]:
    """`name==version` of all that the needed packages need in turn."""
    text = (ROOT / "requirements-gpu.lock").read_text()
    pins = {plain(n): v for n, v in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M)}
    names, left = set[str](), list[str](NEEDED)
    while left:
        name = plain(left.pop())
        if name in names or name in LEFT_OUT:
            continue
        names.add(name)
        for text in metadata.requires(name) or ():
            requirement, where = Requirement(text), {"extra": "", "python_version": python}
            if requirement.marker is None or requirement.marker.evaluate(where):
                left.append(requirement.name)
    return [f"{name}=={pins[name]}" for name in sorted(names)]


def download(python: str, names: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
               "--only-binary=:all:", "--python-version", python]  # fmt: skip
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([str(word) for word in [*command, *names]], check=True)


def packed_wheels(python: str, folder: Path) -> Path:
    """An archive of the wheels, made once for each list of them: it takes minutes."""
    names = wheels(python)
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
    """Tracked files, of the tests only those of T0."""
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


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--out", type=Path, default=ROOT / "build/gpu-bundle.tar")
    options = parser.parse_args(words)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    packed = packed_wheels(options.python, options.out.parent)
    with tarfile.open(options.out, "w") as archive:
        archive.add(packed, "gpu-bundle/wheels.tar.xz")
        archive.add(ROOT / "tests/gpu/run.py", "gpu-bundle/run.py")
        add(archive, "gpu-bundle/PYTHON", options.python.encode())
        for name in tree():
            archive.add(ROOT / name, f"gpu-bundle/klear/{name}", recursive=False)
        add(archive, "gpu-bundle/klear/COMMIT", commit().encode())
        # before a package of that name elsewhere
        add(archive, "gpu-bundle/klear/tests/__init__.py", b"")
    size = options.out.stat().st_size / 2**20
    print(f"{options.out}: {size:.1f} MiB, for Python {options.python} with torch. There:")
    print(f"  tar -xf {options.out.name} && python3 gpu-bundle/run.py FOLDER")
    if size > LIMIT_MIB:
        print(f"that is over {LIMIT_MIB} MiB")
    return int(size > LIMIT_MIB)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
