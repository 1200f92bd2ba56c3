"""From problems to tokens and back: the one place that knows the chat template.

SFT, RL and evaluation render through here, so what is trained is what is sampled. The answer's
`<think>` tags are written by the model itself: the template never prefills them, since an answer
is judged only by what it contains.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from klear.eval.answers import THINK_CLOSE, THINK_OPEN

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)  # ChatML, as Qwen3


def conversation(prompt: str) -> list[dict[str, str]]:
    """The single user turn of a problem."""
    return [{"role": "user", "content": prompt}]


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of each prompt up to the point where the model begins its answer."""
    if not prompts:
        return []
    turns = [conversation(p) for p in prompts]
    encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    return encoded["input_ids"]  # type: ignore[index]


def response_ids(tokenizer: PreTrainedTokenizerBase, responses: Sequence[str]) -> list[list[int]]:
    """Token ids of each answer, closed by the end-of-turn token."""
    end = end_of_turn(tokenizer)
    encoded = tokenizer(list(responses), add_special_tokens=False)["input_ids"]
    return [[*ids, end] for ids in encoded]  # type: ignore[misc]


def response_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[Sequence[int]]) -> list[str]:
    """The answers as the judge sees them: without end-of-turn and padding, with think tags."""
    return tokenizer.batch_decode([list(i) for i in ids], skip_special_tokens=True)


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that ends an answer: `<|im_end|>` where the vocabulary has it, else EOS."""
    end = tokenizer.get_vocab().get(TURN_END, tokenizer.eos_token_id)
    if not isinstance(end, int):
        raise ValueError(f"the tokenizer has neither {TURN_END} nor an EOS token to end an answer")
    return end


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError, with the cure, if answers could not be trained on or judged."""
    wrong = ""
    answer = f"{THINK_OPEN}\n1\n{THINK_CLOSE}\n2"
    (kept,) = response_texts(tokenizer, response_ids(tokenizer, [answer]))
    if tokenizer.pad_token_id in (None, end_of_turn(tokenizer)):
        wrong = "needs another pad_token than its end of turn: an answer would look like padding"
    elif THINK_OPEN not in kept or THINK_CLOSE not in kept:
        wrong = f"drops {THINK_OPEN} and {THINK_CLOSE} when decoding: add them as ordinary tokens"
    if wrong:
        raise ValueError(f"the tokenizer of {tokenizer.name_or_path or 'this model'} {wrong}")
