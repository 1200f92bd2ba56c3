"""How people write values, and one spelling for each: words, numerals, LaTeX, formulas."""
