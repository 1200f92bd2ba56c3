"""When two mathematical answers are equal."""
