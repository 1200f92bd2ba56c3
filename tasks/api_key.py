"""The key of an endpoint, from where the settings say it is. It is returned and kept nowhere."""

from configs.engines import EngineSettings
from training.engines.interface import EngineError


def api_key(engine: EngineSettings) -> str | None:
    """The value of the Prefect Secret block `api_key_block`; None: the environment variable counts.

    Raises EngineError that names the block when it does not exist or cannot be read.
    """
    if engine.kind != "openai" or not engine.api_key_block:
        return None
    from prefect.blocks.system import Secret  # seconds, and most runs need no block

    try:
        block = Secret.load(engine.api_key_block, _sync=True)  # type: ignore[call-arg]
    except Exception as error:  # no server, no block, a block of another kind
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EngineError(
            f"the Prefect Secret block {engine.api_key_block!r} cannot be read ({first}): create "
            "it in the UI under Blocks, or name an environment variable by api_key_env"
        ) from None
    return str(block.get())  # type: ignore[union-attr]
