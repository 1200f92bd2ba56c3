"""What is said of every model and tokenizer that is loaded: its files are data, never programs.

Without it transformers would unpickle a `pytorch_model.bin`, and ask at a terminal whether Python
files that came with a model may run.
"""

NO_CODE = {"trust_remote_code": False}
WEIGHTS = {**NO_CODE, "use_safetensors": True}
