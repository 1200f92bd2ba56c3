"""The key of an endpoint: a Prefect Secret block, or a line that says which one is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs.settings.engines import EngineSettings
from tasks.answers.asking import api_key

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-from-a-block-42"
SCRIPT = """
from prefect.testing.utilities import prefect_test_harness
from configs.settings.engines import EngineSettings
from tasks.answers.asking import api_key
from training.engines.interface import EngineError
with prefect_test_harness():
    from prefect.blocks.system import Secret
    Secret(value={key!r}).save("teacher-key")
    engine = EngineSettings(kind="openai", model="m", base_url="http://127.0.0.1/v1",
                            api_key_block="teacher-key")
    print(api_key(engine))
    print(engine.model_dump_json())
    try:
        api_key(engine.model_copy(update={{"api_key_block": "missing"}}))
    except EngineError as error:
        print("refused:", error)
"""


def test_the_key_comes_from_the_named_block_and_settings_hold_its_name_only():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(key=KEY)],
        cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found, settings, refused = done.stdout.strip().splitlines()[-3:]
    assert found == KEY
    assert KEY not in settings
    assert "teacher-key" in settings
    assert refused.startswith("refused: the Prefect Secret block 'missing' cannot be read")
    assert "api_key_env" in refused


def test_without_a_block_the_environment_variable_counts():
    engine = EngineSettings(kind="openai", model="m", base_url="http://127.0.0.1/v1")
    assert api_key(engine) is None
    assert api_key(EngineSettings(kind="scripted", api_key_block="never read")) is None


@pytest.mark.parametrize(
    "url", ["http://user:word@host/v1", "https://host/v1?key=abc", "ftp://host", "host/v1"]
)
def test_a_url_that_holds_a_secret_or_is_none_is_refused(url):
    with pytest.raises(ValueError, match="base_url"):
        EngineSettings(kind="openai", model="m", base_url=url)
