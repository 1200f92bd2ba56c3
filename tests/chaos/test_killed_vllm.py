"""SIGKILL of a vLLM server in the middle of a stage. More of them: `make chaos`."""

import random
from pathlib import Path

import pytest
from served import REQUESTS, Blow, run

SEED = 5  # the moment
# a minute on a machine that does nothing else
pytestmark = [pytest.mark.system, pytest.mark.timeout(3600)]


def test_a_killed_vllm_server_costs_no_answer_and_changes_none(tmp_path: Path) -> None:
    moment = random.Random(SEED).uniform(0.1, 0.8)
    found = run(tmp_path, [Blow("server", moment, late=True)])
    assert found.broken == []
    assert found.killed == ["server"]
    assert found.starts == 2  # the one that gave up, and the same command again
    assert 0 < found.kept[0] < REQUESTS  # it died in the middle, not before and not after
