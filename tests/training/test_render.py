"""What is trained is what is sampled: one rendering for SFT, RL and evaluation."""

from training.checkpoints import load_tokenizer
from training.render import conversation, end_of_turn, prompt_ids, response_ids, response_texts


def test_a_prompt_ends_where_the_answer_begins(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    (ids,) = prompt_ids(tokenizer, ["Make 5 from 1, 2, 3."])
    assert tokenizer.decode(ids) == (
        "<|im_start|>user\nMake 5 from 1, 2, 3.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_never_opens_the_think_block(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    (ids,) = prompt_ids(tokenizer, ["p"])
    assert "<think>" not in tokenizer.decode(ids)


def test_an_answer_ends_with_the_end_of_turn_and_decodes_to_itself(files, examples):
    tokenizer = load_tokenizer(files["checkpoint"])
    texts = [e.response for e in examples]
    ids = response_ids(tokenizer, texts)
    assert all(i[-1] == end_of_turn(tokenizer) for i in ids)
    assert response_texts(tokenizer, ids) == texts


def test_the_trainer_renders_prompts_as_we_do(files):
    """TRL tokenizes conversational prompts itself when vLLM samples."""
    tokenizer = load_tokenizer(files["checkpoint"])
    theirs = tokenizer.apply_chat_template(
        [conversation("Make 5.")], add_generation_prompt=True, tokenize=True, return_dict=True
    )
    assert theirs["input_ids"] == prompt_ids(tokenizer, ["Make 5."])


def test_nothing_renders_to_nothing(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    assert prompt_ids(tokenizer, []) == response_ids(tokenizer, []) == []
