"""What Prefect's pages offer, and the servers behind them."""
