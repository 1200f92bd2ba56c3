"""From problems to answers: distillation, judging, filters and selection."""
