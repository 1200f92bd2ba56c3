"""Weights: the only package that imports torch, transformers, trl or vllm."""
