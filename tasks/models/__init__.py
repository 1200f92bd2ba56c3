"""The stages that train and evaluate models."""
