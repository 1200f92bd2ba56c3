"""What vLLM's workers are taught, so that they take the weights of a policy without NCCL.

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER \\
        --worker-extension-cls training.vllm.worker.PolicyWeights

vLLM has its own way for new weights, `reload_weights`; on CPU that leaves one of them behind.
"""

from collections.abc import Iterable
from typing import Any

EXTENSION = "training.vllm.worker.PolicyWeights"


class PolicyWeights:
    """Methods added to the worker of vLLM that names this class as its extension."""

    def take_policy(
        self,
        weights_path: str | None = None,
        weights_iterator: Iterable[tuple[str, Any]] | None = None,
    ) -> None:
        """Use the weights in a folder of safetensors, or the (name, tensor) pairs given.

        On CPU a layer computes with a packed copy of its weights. `reload_weights` packs the layers
        that it loads; a tied head is not among them and would go on with the old weights.
        """
        worker: Any = self
        worker.reload_weights(weights_path=weights_path, weights_iterator=weights_iterator)
        model = worker.model_runner.get_model()
        head: Any = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        packed = hasattr(head, "cpu_linear") and head is not embedding
        if packed and head.weight is getattr(embedding, "weight", None):
            head.quant_method.process_weights_after_loading(head)
