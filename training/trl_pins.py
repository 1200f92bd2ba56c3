"""The methods of TRL and transformers that GPPOTrainer and its sampler replace or call, as of
trl 1.16.

An upgrade that changes one of them fails a test that says what to read, instead of a training
run that silently does something else.
"""

import inspect
from collections.abc import Callable
from typing import Any

SIGNATURES = {
    "training_step": "(self, model, inputs, num_items_in_batch)",
    "_prepare_inputs": "(self, generation_batch)",
    "_get_train_sampler": "(self, dataset=None)",
    "_calculate_rewards": "(self, inputs, prompts, completions, completion_ids_list)",
    "_generate_and_score_completions": "(self, inputs)",
    "_generate_single_turn": (
        "(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False)"
    ),
    "_get_per_token_logps_and_entropies": (
        "(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, "
        "compute_entropy=False, compute_aux_loss=False, pixel_values=None, image_grid_thw=None, "
        "num_images=None, pixel_attention_mask=None, spatial_shapes=None, num_tiles=None, "
        "image_sizes=None, token_type_ids=None, mm_token_type_ids=None, image_position_ids=None)"
    ),
    "_get_grad_norm": "(self, model, grad_norm=None)",
    "_save_checkpoint": "(self, model, trial)",
    "_load_optimizer_and_scheduler": "(self, checkpoint)",
    "_get_output_dir": "(self, trial)",
    "log": "(self, logs, start_time=None)",
}
SAMPLER_SIGNATURES = {  # of VLLMGeneration
    "_init_vllm": "(self)",
    "_iter_named_params": "(self)",
    "sync_weights": "(self)",
    "generate": "(self, prompts, images, num_generations, profiler=None)",
}
CLIENT_SIGNATURES = {  # of VLLMClient
    "_post": "(self, url, **kwargs)",
    "check_server": "(self, total_timeout=0.0, retry_interval=2.0)",
    "get_server_info": "(self)",
    "reset_prefix_cache": "(self)",
}
BATCH_KEYS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
"""What `_generate_and_score_completions` must return."""


def signature_of(method: Callable[..., Any]) -> str:
    """The parameters of `method` without annotations."""
    parameters = inspect.signature(method).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))
