"""When two spelled answers are equal: lists of named rules, each with its cases."""
