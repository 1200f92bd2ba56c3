"""What a model's positions leave for an answer: counted for each prompt, and never in silence."""

from types import SimpleNamespace

import pytest

from training.room import Room, check_room, positions_of


def test_yarn_stretches_the_positions_of_the_model():
    assert positions_of(SimpleNamespace(max_position_embeddings=32_768), 2.5) == 81_920
    assert positions_of(SimpleNamespace(max_position_embeddings=128)) == 128
    assert positions_of(SimpleNamespace()) is None


def test_an_answer_that_the_model_ends_early_is_said_once(capsys):
    room = Room("m", 128)
    assert [room.after(prompt, 100) for prompt in (28, 29, 127, 128, 200)] == [100, 99, 1, 0, 0]
    said = capsys.readouterr().err
    assert said.count("has 128 positions") == 1
    assert "after a prompt of 29 tokens an answer ends at 99, not at max_tokens=100" in said
    assert Room("m", None).after(10**6, 100) == 100


def test_rl_refuses_a_model_that_would_end_answers_early():
    check_room(36_864, 4_096, 32_768)
    check_room(None, 4_096, 32_768)
    with pytest.raises(ValueError, match=r"4,096 \+ 32,768 = 36,864 positions .* has 32,768: lower "
                       r"max_tokens to 28,672"):  # fmt: skip
        check_room(32_768, 4_096, 32_768)
