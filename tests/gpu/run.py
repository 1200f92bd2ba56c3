"""Of the bundle: installs into a folder and runs its tier, without a network.

    python3 gpu-bundle/run.py FOLDER [options of tests/gpu/check.py]

Nothing outside of FOLDER and the bundle is changed. FOLDER/GPU.jsonl has the lines. A package that
is there in the same version stays, and so does a compiled one that is newer, for others were built
against it.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def is_wanted(wheel: Path) -> bool:
    name, ours = wheel.name.split("-")[:2]
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return True
    compiled = not wheel.name.endswith("-none-any.whl")
    return version != ours and not (compiled and numbers(version) >= numbers(ours))


def install(wheels: list[Path], site: Path) -> None:
    """By pip; where it is missing or refuses, unpacked: a wheel is a zip of what it installs."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *quiet, "--no-index", "--no-deps",
               "--upgrade", "--target", str(site)]  # fmt: skip
    if subprocess.run([*command, *map(str, wheels)]).returncode:
        print("pip did not install them; they are unpacked instead", flush=True)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)


def main(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        print(__doc__)
        return 2
    folder, made_for = Path(words[0]).resolve(), (BUNDLE / "PYTHON").read_text()
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != made_for:
        print(f"this bundle is for Python {made_for}, and {sys.executable} is {sys.version}")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(BUNDLE / "wheels.tar.xz") as archive:
        archive.extractall(folder / "wheels", filter="data")
    wheels = [*sorted((folder / "wheels").glob("*.whl")), *BUNDLE.glob("*.whl")]
    site = folder / "site-packages"  # by this name dill knows what it need not pickle whole
    wanted = [wheel for wheel in wheels if is_wanted(wheel)]
    print(f"installing {len(wanted)} of {len(wheels)} packages into {site}", flush=True)
    if wanted:
        install(wanted, site)
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    tier = (BUNDLE / "TIER").read_text()
    check = [sys.executable, "-m", "tests.gpu.check", tier, "--log", str(folder / "GPU.jsonl")]
    return subprocess.run([*check, *words[1:]], cwd=BUNDLE / "klear", env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
