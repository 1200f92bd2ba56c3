"""What a run tells MLflow and Prefect."""
