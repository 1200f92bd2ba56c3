"""`klear eval`: any model on any benchmark."""
