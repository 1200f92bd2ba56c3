from tasks.data.overlaps.words import alnum_words, whitespace_words


def test_latex_becomes_its_letters_and_digits():
    words = alnum_words(r"Let $\frac{1}{2}x_1 \le \sqrt3$.")
    assert words == ["let", "frac", "1", "2", "x", "1", "le", "sqrt3"]


def test_the_same_problem_in_other_typesetting_has_the_same_words():
    assert alnum_words("base $b$  is\n9b+7.") == alnum_words("base b is $9b + 7$")


def test_a_raised_digit_is_a_word_of_its_own():
    assert alnum_words("x² + y₁") == alnum_words("x^2 + y_1")


def test_invisible_characters_hide_no_word():
    hidden = "Fi\u00adnd\u200b the\u2060 nu\u200bmb\u200der \ufeffof\u200e pairs"
    assert alnum_words(hidden) == alnum_words("Find the number of pairs")


def test_letters_of_any_script_are_words_and_their_signs_are_not():
    assert alnum_words("Ünïcode “ΣΑΣ”—число") == ["ünïcode", "σας", "число"]


def test_both_routes_of_alnum_agree_on_ascii():
    text = "".join(chr(c) for c in range(128))
    beyond = alnum_words(text + " é")
    assert alnum_words(text) == beyond[:-1]


def test_whitespace_rule_keeps_punctuation():
    assert whitespace_words("A b,\u00a0C.\n") == ["a", "b,", "c."]
