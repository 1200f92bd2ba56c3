"""The command `klear`."""
