"""GPPO reinforcement learning (§3.2)."""
