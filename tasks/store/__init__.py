"""Where results lie: one folder a key, published whole."""
