"""Which models an endpoint serves: asked before anything else, so that a wrong URL says so."""

import openai

from training.engines.endpoint import NO_KEY
from training.engines.endpoint_errors import HOPELESS, reason_of
from training.engines.interface import EngineError

TIMEOUT_S = 20.0
HINTS = {**HOPELESS, 404: "no such URL; base_url usually ends in /v1"}


def served_models(base_url: str, key: str = "") -> list[str]:
    """Their names, sorted. Raises EngineError in one line that holds no key."""
    client = openai.OpenAI(
        api_key=key or NO_KEY, base_url=base_url, timeout=TIMEOUT_S, max_retries=1
    )
    try:
        with client:
            return sorted(m.id for m in client.models.list().data)
    except openai.APIStatusError as error:
        hint = HINTS.get(error.status_code, "")
        why = f"HTTP {error.status_code}" + (f" ({hint})" if hint else "")
    except (openai.APIError, ValueError, TypeError, AttributeError) as error:
        why = reason_of(error)
    raise EngineError(f"{base_url} does not say which models it serves: {why}") from None
