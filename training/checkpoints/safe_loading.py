"""Arguments of every `from_pretrained`: no pickled weights, no code that came with a model.

Without them transformers would unpickle a `pytorch_model.bin`, and ask at a terminal whether Python
files that came with a model may run.
"""

NO_CODE = {"trust_remote_code": False}
WEIGHTS = {**NO_CODE, "use_safetensors": True}
