"""From settings to an engine. Heavy packages are imported only by the engine that needs them."""

from configs.settings.engines import EngineSettings, Sampling
from training.engines.interface import Engine, LocalEngine
from training.engines.without_model import RecordedEngine, ScriptedEngine


def is_local(settings: EngineSettings) -> bool:
    """Whether the engine computes itself, and therefore belongs into a child process."""
    return settings.kind in ("vllm", "transformers")


def make_engine(settings: EngineSettings, sampling: Sampling, key: str | None = None) -> Engine:
    """The engine of `settings`; raises EngineError with the cure when it cannot start.

    `key` is that of an endpoint; None: from the environment variable that the settings name.
    """
    if settings.kind == "scripted":
        return ScriptedEngine(settings)
    if settings.kind == "recorded":
        return RecordedEngine(settings)
    if settings.kind == "openai":
        from training.engines.endpoint import EndpointEngine

        return EndpointEngine(settings, sampling, key)
    return make_local_engine(settings, sampling)


def make_local_engine(settings: EngineSettings, sampling: Sampling) -> LocalEngine:
    """A vLLM or transformers engine; takes seconds and imports torch."""
    if settings.kind == "vllm":
        from training.engines.vllm_engine import VLLMEngine

        return VLLMEngine(settings, sampling)
    from training.engines.transformers_engine import TransformersEngine

    return TransformersEngine(settings, sampling)
