"""Is it safe to put several sequences into one row? Asked of the model, not of its name."""

from typing import Any

import torch

PROBE = 8  # tokens of each probe sequence


@torch.no_grad()
def check_packing(model: Any) -> None:
    """Raise ValueError if a packed sequence sees the one before it.

    The second of two packed sequences must give the same logits whatever the first one is. That
    holds where the attention kernel takes sequence starts from `position_ids` that begin anew.
    """
    config = model.config.get_text_config()
    vocabulary = torch.arange(config.vocab_size, device=model.device)
    second = vocabulary[:PROBE]
    positions = torch.arange(PROBE, device=model.device).repeat(2)[None]
    training = model.training
    model.eval()
    seen = []
    for first in (vocabulary[:PROBE], vocabulary[-PROBE:]):
        ids = torch.cat([first, second])[None]
        output = model(input_ids=ids, position_ids=positions, use_cache=False)  # as in training
        seen.append(output.logits[0, PROBE:].float())
    model.train(training)
    if not torch.allclose(*seen, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"attention={config._attn_implementation} lets packed sequences see each other: use "
            "flash_attention_2 or sdpa, or set packing to false"
        )
