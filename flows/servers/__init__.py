"""The Prefect server, the MLflow server and the worker."""
