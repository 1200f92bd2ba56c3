"""vLLM as the sampler of RL."""
