"""The token of a stage's own vLLM server: whoever does not have it is answered 401 on every path.

vLLM's `--api-key` guards the paths of the OpenAI API. Those that take weights and call methods of
the workers (VLLM_SERVER_DEV_MODE) stay open with it, and the server of a launch over nodes listens
on its node's address. `RequireToken` is handed to vLLM by `--middleware` and guards them all. Each
start of a server draws a token of its own, which travels in the environment: no command line holds
it, and no log.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN = "KLEAR_STAGE_VLLM_TOKEN"
"""Environment variable of the server, and of the first training process."""
BYTES = 32
REFUSAL = b'{"error": "this server answers the stage that started it, and nobody else"}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def new_token() -> str:
    """256 random bits, as text for a header."""
    return secrets.token_urlsafe(BYTES)


def header(token: str) -> dict[str, str]:
    """What a request to the server carries; nothing without a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


class RequireToken:
    """ASGI middleware: requests and websockets reach `app` with the token only.

    Raises RuntimeError where the environment holds none: a server that lets everybody in would be
    worse than none.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise RuntimeError(f"{TOKEN} is not set: training.beside_vllm draws one")
        self._app, self._right = app, header(token)["Authorization"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._has_token(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})

    def _has_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and secrets.compare_digest(given[0], self._right)


REQUIRE = f"{__name__}.{RequireToken.__name__}"
"""What `vllm serve --middleware` takes."""
