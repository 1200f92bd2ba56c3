"""What a vLLM needs that a trainer without CUDA samples from: `--worker-extension-cls`.

vLLM's workers import it by its name; so it imports nothing heavy.
"""

from collections.abc import Iterable
from typing import Any

EXTENSION = "training.rl.vllm_weights.PolicyWeights"


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
