"""What may be chosen: one frozen settings class per stage, and the profiles."""
