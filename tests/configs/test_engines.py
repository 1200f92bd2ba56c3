"""Addresses of engines: they are written down in many places, so no secret may be in them."""

import pytest
from pydantic import ValidationError

from configs.engines import EngineSettings
from configs.explain import ConfigError
from configs.load import load_profile
from configs.training_stages import TrainRuntime


def endpoint(url: str) -> str:
    return EngineSettings(kind="openai", model="m", base_url=url).base_url


def server(url: str) -> str:
    return TrainRuntime(vllm_server_url=url).vllm_server_url


@pytest.mark.parametrize("accepted", [endpoint, server])
def test_an_address_with_a_secret_or_without_http_is_refused(accepted):
    assert accepted("https://gpu-1:8000/v1") == "https://gpu-1:8000/v1"
    for secret in ("http://user:hidden@host", "http://hidden@host", "http://host/v1?key=hidden"):
        with pytest.raises(ValidationError, match="no user, password or query"):
            accepted(secret)
    for wrong in ("gpu-1:8000", "ftp://gpu-1"):
        with pytest.raises(ValidationError, match="http:// or https://"):
            accepted(wrong)


def test_the_message_names_the_setting_and_does_not_repeat_the_secret():
    with pytest.raises(ConfigError, match="vllm_server_url") as refused:
        load_profile("tiny", ["rl_math.runtime.vllm_server_url=http://user:hidden@host"])
    assert "hidden" not in str(refused.value)
