"""Every data stage, killed at a random moment and started again, gives the same digest."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PROFILE = """
extends: tiny
collect:
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 300}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 60}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 900,
       duplicate_share: 0.1, contaminated_share: 0.1, contaminated_seed: 2024}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 60,
       duplicate_share: 0.1}
dedup: {near: true}
select: {size: 600}
"""
CHAIN = """
import json, signal, sys
from pathlib import Path
from klear.configs.loading import load_profile
from klear.flows.stages import run_stages
from klear.tasks.stage.progress import Plain
from klear.tasks.stage.run import Run, active
from klear.tasks.store.store import Store

profile, store, victim, delay = sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])

class Doom(Plain):
    '''SIGALRM, which nobody handles, ends the process like any kill does.'''
    def started(self, stage, why):
        if stage == victim:
            signal.setitimer(signal.ITIMER_REAL, delay)
    def finished(self, stage, *rest):
        if stage == victim:
            signal.setitimer(signal.ITIMER_REAL, 0)

with active(Run(store=Store(store), display=Doom())):
    steps = run_stages(load_profile(profile), until="filter_rl").values()
print(json.dumps({step.stage: [step.digest, step.metrics, step.seconds] for step in steps}))
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "killed.yaml"
    path.write_text(PROFILE)
    return path


def chain(
    profile: Path, store: Path, victim: str = "", delay: float = 0.0
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", CHAIN, str(profile), str(store), victim, str(delay)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def results(done: "subprocess.CompletedProcess[str]") -> dict[str, tuple[str, dict, float]]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_data_stage_killed_once_gives_the_digests_of_an_undisturbed_run(tmp_path, profile):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    undisturbed = results(chain(profile, tmp_path / "undisturbed"))
    warm = results(chain(profile, tmp_path / "warm"))  # its seconds are not those of cold files
    store = tmp_path / "killed"

    killed = []
    for stage, (_, _, seconds) in warm.items():
        shortest = min(seconds, undisturbed[stage][-1])
        done = chain(profile, store, stage, max(0.005, chance.uniform(0.05, 0.7) * shortest))
        if done.returncode == -signal.SIGALRM:
            killed.append(stage)
            assert not list(store.glob(f"{stage}/*")), f"{stage} was killed and yet published"
        else:
            assert done.returncode == 0, done.stderr

    resumed = results(chain(profile, store))
    for one in (warm, resumed):
        for stage, (digest, metrics, _) in one.items():
            assert digest == undisturbed[stage][0], f"{stage}: {metrics}, {undisturbed[stage][1]}"
    assert list(resumed) == list(undisturbed)
    assert len(killed) >= len(undisturbed) / 2, f"only {killed} died in time"
