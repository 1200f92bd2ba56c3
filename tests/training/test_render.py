"""What is trained is what is sampled: one rendering for SFT, RL and evaluation."""

import pytest

from training.checkpoints.saving import load_tokenizer
from training.render import (
    check_tokenizer,
    end_of_turn,
    prompt_ids,
    response_ids,
    response_texts,
)


def test_a_prompt_ends_where_the_answer_begins(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    (ids,) = prompt_ids(tokenizer, ["Make 5 from 1, 2, 3."])
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nMake 5 from 1, 2, 3.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_answer_ends_with_the_end_of_turn_and_decodes_to_itself(files, examples):
    tokenizer = load_tokenizer(files["checkpoint"])
    texts = [e.response for e in examples]
    ids = response_ids(tokenizer, texts)
    assert all(i[-1] == end_of_turn(tokenizer) for i in ids)
    assert response_texts(tokenizer, ids) == texts


def altered(files, **changes):
    tokenizer = load_tokenizer(files["checkpoint"])
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pad_token": None}, "has no pad token"),
        ({"pad_token": "<|im_end|>"}, "a finished answer would look like padding"),
        ({"chat_template": None}, "no chat template"),
    ],
)
def test_a_tokenizer_that_cannot_is_refused_with_the_cure(files, changes, message):
    with pytest.raises(ValueError, match=message):
        check_tokenizer(altered(files, **changes))


def test_think_tags_that_decoding_drops_are_refused(files):
    tokenizer = altered(files)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    with pytest.raises(ValueError, match="does not keep <think>"):
        check_tokenizer(tokenizer)
