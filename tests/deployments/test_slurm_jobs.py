"""What the Slurm scripts start, with stand-ins for Slurm, Ray and klear; and how a run is split."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from configs.loading import load_profile
from configs.settings.placing import placed
from configs.stage_names import STAGES
from flows.cli.plan import plan
from tasks.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deployments"
README = (FOLDER / "README.md").read_text()
STAND_INS = {
    "bin/scontrol": "printf 'n0\\nn1\\n'",
    "bin/srun": 'echo "$RAY_AUTH_MODE $(stat -c %a "$RAY_AUTH_TOKEN_PATH") srun $*" >>started',
    ".venv/bin/klear": 'echo "$KLEAR_RAY_ADDRESS: $*"; wc -c <"$RAY_AUTH_TOKEN_PATH" >token',
    # asked for a token it is Python, asked how many nodes have joined it knows
    ".venv/bin/python": f'case "$1" in -c) exec {sys.executable} "$@";; *) echo 2;; esac',
}


@pytest.fixture
def allocation(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with two nodes of 96 CPUs."""
    for name, script in STAND_INS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin", "KLEAR_HOME": str(tmp_path / "home"),
        "KLEAR_PREFECT_URL": "http://a:1", "KLEAR_MLFLOW_URL": "http://a:2",
        "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "96",
    }  # fmt: skip


def test_ray_gets_every_cpu_of_its_nodes_and_asks_for_a_token(
    tmp_path: Path, allocation: dict[str, str]
) -> None:
    done = subprocess.run(
        ["bash", FOLDER / "slurm/ray.sbatch", "paper"],
        env=allocation, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "n0:6379: run paper\n"), done.stderr
    steps = (tmp_path / "started").read_text().splitlines()
    assert len(steps) == 2
    for step, node in zip(sorted(steps, key=lambda s: "n1" in s), ("n0", "n1"), strict=True):
        assert step.startswith("token 600 srun ")
        # without it Slurm binds a step to one CPU, whatever the job asked for
        assert "--cpus-per-task=96 " in step
        assert f"--nodelist={node} " in step
        assert "--num-cpus=96 " in step
    assert (tmp_path / "token").read_text().strip() == "64"
    assert not list((tmp_path / "home").iterdir())  # the token ends with its cluster


def test_a_chain_of_jobs_has_the_settings_and_the_days_that_a_run_takes(tmp_path: Path) -> None:
    block = README.partition("A chain\nof four jobs")[2].partition(":\n\n")[2].partition("\n\n")[0]
    (fast,) = re.findall(r"^    (fast=.*)$", README, re.M)
    stand_in = tmp_path / "sbatch"
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\ngrep -c . {tmp_path}/asked\n'  # 1, 2, …
    )
    stand_in.chmod(0o755)
    subprocess.run(
        ["bash", "-euc", f"{fast}\n{block}"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=ROOT, timeout=60, check=True,
    )  # fmt: skip
    jobs = [shlex.split(line) for line in (tmp_path / "asked").read_text().splitlines()]
    for number, words in enumerate(jobs):
        after = [f"--dependency=afternotok:{number}", "--kill-on-invalid-dep=yes"] if number else []
        assert words[: 2 + len(after)] == ["--parsable", *after, "deployments/slurm/klear.sbatch"]
        assert words[2 + len(after)] == "paper"
    settings = [word for word in jobs[0] if "=" in word and not word.startswith("--")]
    assert all([w for w in words if w in settings] == settings for words in jobs)
    seconds = sum(s.seconds or 0.0 for s in plan(load_profile("paper", settings), Store(tmp_path)))
    assert 23 < seconds / 86_400 < 7 * len(jobs)
    slow = sum(s.seconds or 0.0 for s in plan(load_profile("paper", []), Store(tmp_path)))
    assert slow / 86_400 == pytest.approx(314, abs=1)


def split() -> list[tuple[str, str, str]]:
    """(options, script, stage it ends with) of every job of the README's split run."""
    found = re.findall(r"^    after (.*?)deployments/slurm/(\w+)\.sbatch paper(.*)$", README, re.M)
    assert found
    return [(o, script, rest.rpartition("--until")[2].strip()) for o, script, rest in found]


def test_a_split_run_reserves_gpus_for_the_stages_that_use_some() -> None:
    ends = [STAGES.index(stage.split()[-1]) if "$" not in stage else len(STAGES) - 1
            for _, _, stage in split()]  # fmt: skip
    assert ends == sorted(ends)
    begin, jobs = 0, {}
    for (options, script, _), end in zip(split(), ends, strict=True):
        nodes = re.search(r"--nodes=(\d)", options)
        has = 0 if script == "cpu" else int(nodes[1]) if nodes else 4
        jobs |= dict.fromkeys(STAGES[begin : end + 1], has)
        begin = end + 1
    assert list(jobs) == list(STAGES)
    paper = load_profile("paper", [])
    needed = {"rate": 1} | {name: 1 for name in STAGES if name.startswith("evaluate_")}
    for name in ("sft", "rl_math", "rl_code"):
        settings = placed(getattr(paper, name), paper.topology)
        assert settings.runtime.launch is not None
        needed[name] = settings.runtime.launch.machines
    assert {name: has for name, has in jobs.items() if has} == needed | {"report": 1}


def test_the_readmes_commands_leave_no_image_that_nobody_has(tmp_path: Path) -> None:
    for folder in ("kubernetes", "ray"):
        place = tmp_path / "deployments" / folder
        place.mkdir(parents=True)
        for file in (FOLDER / folder).glob("*.yaml"):
            (place / file.name).write_text(file.read_text())
    (command,) = re.findall(r"^    (sed -i .*)$", README, re.M)
    environment = {**os.environ, "image": "ghcr.example/team/klear:gpu"}
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, check=True)
    images = [
        line.split("image: ")[1]
        for file in tmp_path.rglob("*.yaml")
        for line in file.read_text().splitlines()
        if line.strip().startswith("image: ")
    ]
    assert len(images) == 5
    assert set(images) == {"ghcr.example/team/klear:gpu"}
