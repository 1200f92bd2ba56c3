"""T1, one card: `klear run tiny` on CUDA, with its own servers. Needs the whole environment, and
bubblewrap."""

import re
import shutil

from tests.gpu.check import Case, Report, Skip

ROW = re.compile(
    r"^ *(base|SFT|math RL|code RL) +([\d.]+) \[.*?\]\S* *(?:[+−]\S+)? +([\d.]+)", re.M
)


def klear_run_tiny(report: Report) -> None:
    """The whole chain; its last model beats its base on math and on code."""
    from tests.home import Home

    if not shutil.which("bwrap"):
        raise Skip("bubblewrap is not installed")
    home = Home(report.scratch)
    home.klear("up")
    try:
        printed = home.klear("run", "tiny")
    finally:
        home.command("down")
    scores = {name: (float(math), float(code)) for name, math, code in ROW.findall(printed)}
    for name, (math, code) in scores.items():
        report.figure(**{f"{name}, math": math, f"{name}, code": code})
    assert all(last > first for last, first in zip(scores["code RL"], scores["base"], strict=True))


CASES = [Case("klear_run_tiny", klear_run_tiny, 1_200, ("cuda", "prefect", "mlflow"), alone=True)]
