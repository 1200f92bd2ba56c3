"""Supervised fine-tuning on long chains of thought (§3.1)."""
