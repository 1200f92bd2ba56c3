"""What the Prefect UI offers."""
