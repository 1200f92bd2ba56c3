"""When two mathematical answers are equal: by lists of rules, each rule with its own cases."""
