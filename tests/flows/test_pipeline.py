"""The whole chain through real servers, on a profile of seconds: run, reuse, refusal."""

import re

from home import EVERY_STAGE, Home, cached, computed


def test_every_stage_runs_once_is_tracked_and_is_reused(cockpit: Home, first: str) -> None:
    assert sorted(computed(first)) == sorted(EVERY_STAGE)
    (page,) = cockpit.store.glob("report/*/report.html")
    assert "not comparable to the paper" in page.read_text()
    (parent,) = re.findall(r"runs/(\w+)\?", first)
    assert len(cockpit.stages_of(parent)) == len(EVERY_STAGE)
    run = cockpit.mlflow.get_run(parent)
    assert run.info.status == "FINISHED"
    assert 0.0 <= run.data.metrics["countdown_test/avg"] <= 1.0
    (rl,) = cockpit.stages_of(parent, "rl_math")
    steps = [m.step for m in cockpit.mlflow.get_metric_history(rl, "rl_math/reward/mean")]
    assert sorted(steps) == [1, 2, 3]

    again = cockpit.run()
    assert computed(again) == []
    assert sorted(cached(again)) == sorted(EVERY_STAGE)
    assert "every stage cached" in again

    # a missing data file is one line, and nothing is half written
    words = ("--set", "data.root=/nonexistent", "--until", "collect")
    failed = cockpit.command("run", "replay", *words)
    assert failed.returncode == 1
    (line,) = [x for x in failed.stdout.splitlines() if "failed:" in x]
    assert "source 'aime_1983_2023'" in line
    assert "--set data.root=DIR names the folder that holds it" in line
    assert "Traceback" not in failed.stdout + failed.stderr
    manifests = cockpit.store.glob("collect/*/manifest.json")
    assert not any("nonexistent" in manifest.read_text() for manifest in manifests)
