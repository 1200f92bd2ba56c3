"""`python -m training.vllm.server --model FOLDER …`: vLLM's server, which answers its stage alone.

vLLM's `--api-key` guards the paths of the OpenAI API. Those that take weights and call methods of
the workers (VLLM_SERVER_DEV_MODE) stay open with it, and the server of a launch over nodes listens
on its node's address. `--middleware` RequireToken guards them all. Each start of a server draws a
token of its own, which travels in the environment: no command line holds it, and no log.
`--worker-extension-cls` PolicyWeights takes the weights of a policy without NCCL.

This is not `vllm serve`, which asks for the version of a package that the build for CPUs lacks.
"""

import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

URL = "KLEAR_STAGE_VLLM"
"""Environment variable that tells the first training process where its server is."""
TOKEN = "KLEAR_STAGE_VLLM_TOKEN"
"""Environment variable of the server, and of the first training process."""
REQUIRE = "training.vllm.server.RequireToken"  # for --middleware
EXTENSION = "training.vllm.server.PolicyWeights"  # for --worker-extension-cls
REFUSAL = b'{"error": "this server answers the stage that started it, and nobody else"}'

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def own_server(named: str = "") -> str:
    """`named`, the address in the settings, or that of the stage's own server, or ValueError."""
    url = named or os.environ.get(URL, "")
    if not url:
        raise ValueError(
            "engine=vllm_server without runtime.vllm_server_url: a stage starts its own server "
            "(klear run, or python -m training.vllm.sidecar); name one to use another"
        )
    return url


def header(token: str) -> dict[str, str]:
    """What a request to the server carries; nothing without a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def without_proxy(url: str) -> dict[str, str]:
    """Variables for a process that asks the server at `url`: no proxy stands between."""
    names = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    host = url.partition("://")[2].rpartition(":")[0]
    direct = ",".join(filter(None, (names, host)))
    return {"NO_PROXY": direct, "no_proxy": direct}


class RequireToken:
    """ASGI middleware: requests and websockets reach `app` with the token only.

    Raises RuntimeError where the environment holds none: a server that lets everybody in would be
    worse than none.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise RuntimeError(f"{TOKEN} is not set: training.vllm.sidecar draws one")
        self._app, self._right = app, header(token)["Authorization"].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [v for name, v in scope.get("headers", ()) if name == b"authorization"]
        right = len(given) == 1 and secrets.compare_digest(given[0], self._right)
        if scope["type"] == "lifespan" or right:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})


class PolicyWeights:
    """Methods added to vLLM's worker.

    vLLM's own way for new weights is `reload_weights`. On CPU a layer computes with a packed copy
    of its weights, which that packs anew for the layers that it loads; a tied head is not among
    them and would go on with the old weights.
    """

    def take_policy(
        self,
        weights_path: str | None = None,
        weights_iterator: Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Use the weights in a folder of safetensors, or the (name, tensor) pairs given."""
        worker: Any = self
        worker.reload_weights(weights_path=weights_path, weights_iterator=weights_iterator)
        model = worker.model_runner.get_model()
        head: Any = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        packed = hasattr(head, "cpu_linear") and head is not embedding
        if packed and head.weight is getattr(embedding, "weight", None):
            head.quant_method.process_weights_after_loading(head)


if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server.entry import main

    main()
