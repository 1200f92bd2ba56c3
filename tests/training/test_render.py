"""What is trained is what is sampled: one rendering for SFT, RL and evaluation."""

import pytest

from klear.training.checkpoints import load_tokenizer
from klear.training.render import (
    check_tokenizer,
    end_of_turn,
    prompt_ids,
    response_ids,
    response_texts,
)


def test_a_prompt_ends_where_the_answer_begins_and_that_with_the_end_of_turn(files, examples):
    tokenizer = load_tokenizer(files["checkpoint"])
    (ids,) = prompt_ids(tokenizer, ["Make 5 from 1, 2, 3."])
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nMake 5 from 1, 2, 3.<|im_end|>\n<|im_start|>assistant\n"
    )
    texts = [e.response for e in examples]
    answers = response_ids(tokenizer, texts)
    assert all(i[-1] == end_of_turn(tokenizer) for i in answers)
    assert response_texts(tokenizer, answers) == texts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token": None}, "an answer would look like padding"),
        ({"pad_token": "<|im_end|>"}, "an answer would look like padding"),
        ({"special": ["<think>", "</think>"]}, "drops <think> and"),
    ],
)
def test_a_tokenizer_that_cannot_is_refused_with_the_cure(files, changes, message):
    tokenizer = load_tokenizer(files["checkpoint"])
    for name, value in changes.items():
        if name == "special":
            tokenizer.add_special_tokens({"additional_special_tokens": value})
        else:
            setattr(tokenizer, name, value)
    with pytest.raises(ValueError, match=message):
        check_tokenizer(tokenizer)
