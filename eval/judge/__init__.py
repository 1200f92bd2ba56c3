"""The one judge: an answer in, a Score out."""
