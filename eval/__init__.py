"""Judging: text in, Score out. No torch, no Prefect, no MLflow."""
