"""Engines that turn prompts into Samples."""
