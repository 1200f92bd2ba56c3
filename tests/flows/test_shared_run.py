"""The whole chain with its results on an S3 server, on two machines that share nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from configs.stage_names import STAGES
from tasks.object_store import ObjectStore
from tasks.shared_store import SharedStore

ROOT = Path(__file__).resolve().parents[2]
NOT_IN_TINY = {"rate", "judge_rate", "agreement", "judge_agreement"}
MICRO = """
extends: tiny
collect:
  sources:
    - {name: countdown_rl, domain: math, kind: generated, family: countdown, size: 24}
    - {name: by_example_rl, domain: code, kind: generated, family: by_example, size: 24}
    - {name: countdown, domain: math, kind: generated, family: countdown, size: 60}
    - {name: by_example, domain: code, kind: generated, family: by_example, size: 60}
sft: {epochs: 3, batch_tokens: 1000, checkpoint_steps: 4}
rl_math: &rl {steps: 2, prompts_per_step: 8, rollouts_per_prompt: 4, mini_batch_prompts: 4,
              max_tokens: 48, checkpoint_steps: 1}
rl_code: *rl
evaluate:
  sampling: {max_tokens: 48}
  protocols: [{name: countdown_test, k: 1}, {name: by_example_test, k: 1}]
"""
CHAIN = """
import json, sys
from pathlib import Path
from configs.load import load_profile
from configs.machine import load_machine
from flows.stages import run_stages
from tasks.display import Plain
from tasks.run import Run, active
from tasks.shared_store import open_store

class Told(Plain):
    what = {}
    def finished(self, stage, outcome, *rest):
        self.what[stage] = outcome

store = open_store(load_machine())
with active(Run(store=store, display=Told())):
    page, _ = run_stages(load_profile(sys.argv[1]))
    store.fetch(page)
print(json.dumps([Told.what, page.digest, len(page.file("report.html").read_text())]))
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "KLEAR_STORE": "s3://klear/results",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        ObjectStore("s3://klear")._fs.mkdir("klear")
        yield environment
    server.stop()


def run_on(home: Path, profile: Path) -> tuple[dict[str, str], str, int]:
    """Stage by stage what happened; the report's digest; the characters of its page."""
    done = subprocess.run(
        [sys.executable, "-c", CHAIN, str(profile)],
        cwd=ROOT, env={**os.environ, "KLEAR_HOME": str(home)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_a_second_machine_reuses_every_result_and_computes_only_what_is_gone(bucket, tmp_path):
    profile = tmp_path / "micro.yaml"
    profile.write_text(MICRO)
    computed, digest, characters = run_on(tmp_path / "first", profile)
    assert computed == {s: "computed" for s in STAGES if s not in NOT_IN_TINY}

    reused, same_digest, same_characters = run_on(tmp_path / "second", profile)

    assert reused == dict.fromkeys(computed, "cached")
    assert (same_digest, same_characters) == (digest, characters)
    copies = tmp_path / "second" / "store"
    assert [p.parent.parent.name for p in copies.glob("*/*/manifest.json")] == ["report"]
    shared = SharedStore(copies, bucket["KLEAR_STORE"])
    assert {wrong for _, wrong in shared.shared_damage()} == {""}

    for name in shared.objects.names("report"):
        shared.objects.remove(f"report/{name.split('/')[0]}")
    again, _, _ = run_on(tmp_path / "third", profile)
    assert again == dict.fromkeys(computed, "cached") | {"report": "computed"}
