"""The chat contract: what is trained is what is sampled, and what is judged is the whole answer."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerFast

from klear.configs.settings.engines import EngineSettings, Sampling
from klear.configs.settings.training import BaseModelSettings
from klear.eval.answers import extract_boxed, has_closed_think
from klear.eval.records import Example, Problem
from klear.eval.records.tables import read_table, write_table
from klear.training.base import create_base, small_tokenizer
from klear.training.engines.interface import EngineError, Request
from klear.training.engines.local_model import LocalModel
from klear.training.launch.jobs import BaseJob, RLJob
from klear.training.models import load_model, load_tokenizer
from klear.training.render import CHATML, ChatFormat, conversation, give_template
from klear.training.rl import train as rl
from klear.training.rl.train import RolloutRow
from klear.training.sft import IGNORED, thinking_left_out, tokenized
from tests.training.killed_child import RL

SHIPPED = sorted(Path(trl.__file__).with_name("chat_templates").glob("*.jinja"))
FOR_IMAGES = ("idefics3", "llava_next", "smolvlm")
TEMPLATES = [f.stem for f in SHIPPED if not f.stem.startswith(FOR_IMAGES)]
TOKENIZERS = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"
THOUGHT = "<think>\n6·7 = 42\n</think>\n\nSo it is \\boxed{42}."
PREFILLS = ("<think>\\n", "<think>", "<think>\\n\\n</think>\\n\\n")


@cache
def words(template: str) -> Any:
    """A small tokenizer with the tokens of the template called so."""
    tokenizer = small_tokenizer(["6·7 = 42 So it is boxed"], 400)
    give_template(tokenizer, template)
    return tokenizer


def prefilling(prefill: str) -> str:
    return CHATML.replace("assistant\\n' }}{% endif", f"assistant\\n{prefill}' }}}}{{% endif")


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_row_is_the_prompt_as_sampled_and_the_answer_as_sampled(template, tmp_path):
    chat = ChatFormat.from_template(words(template))
    path = tmp_path / "examples.parquet"
    row = {"problem_id": "p", "index": 0, "domain": "math", "source": "s", "prompt": "6 times 7?"}
    write_table(path, Example, [Example(**row, response=THOUGHT)])
    (tokens,) = tokenized(path, chat, 4_096, tmp_path)
    (prompt,), (answer,) = chat.prompt_ids(["6 times 7?"]), chat.response_ids([THOUGHT])
    assert tokens["input_ids"] == prompt + answer
    assert tokens["labels"] == [IGNORED] * len(prompt) + answer
    judged = chat.text(answer)
    assert (judged.count("<think>"), judged.count("</think>")) == (1, 1)
    assert has_closed_think(judged)
    assert extract_boxed(judged).answer == "42"
    if "</think>" not in chat.prefill:
        assert judged == THOUGHT
    assert answer[-1] in chat.stops
    assert not chat.stops & set(answer[: -len(chat.closing)])
    (more,) = chat.prompt_ids(["No: \\boxed{43}."])  # after the end of the turn
    assert chat.text(answer + more) == judged == chat.text(answer[: -len(chat.closing)])


@pytest.mark.parametrize("template", [f.stem for f in SHIPPED if f.stem not in TEMPLATES])
def test_a_template_that_wants_images_is_refused_with_the_fix(template):
    with pytest.raises(ValueError, match=r"base\.chat_template"):
        ChatFormat.from_template(words(template))


GENERATE = {"add_generation_prompt": True}
CHATML_HI = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ENDS = {"qwen3": "<|im_end|>", "smollm2": "<|im_end|>"}
ENDS["deepseek_v3"] = "<|end▁of▁sentence|>".replace("|", "\uff5c")  # its bars are wide
PROMPTS = {
    "qwen3": CHATML_HI,
    "deepseek_v3": "<|begin▁of▁sentence|><|User|>Hi<|Assistant|>".replace("|", "\uff5c"),
    "smollm2": f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{CHATML_HI}",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_real_tokenizer_opens_and_ends_an_answer_as_its_model_does(name):
    if not TOKENIZERS.exists():
        pytest.skip("needs ../shared/data/tokenizers")
    tokenizer: Any = load_tokenizer(TOKENIZERS / name)
    chat = ChatFormat.from_template(tokenizer)
    prompt = tokenizer.apply_chat_template(conversation("Hi"), tokenize=False, **GENERATE)
    assert prompt == PROMPTS[name]
    assert chat.prompt_ids(["Hi"]) == [tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    assert tokenizer.convert_ids_to_tokens(chat.closing) == [ENDS[name]]
    (answer,) = chat.response_ids([THOUGHT])
    assert chat.text(answer) == THOUGHT
    if name == "qwen3":
        quiet = ChatFormat.from_template(tokenizer, {"enable_thinking": False})
        assert quiet.prefill == "<think>\n\n</think>\n\n"
        (answer,) = quiet.response_ids([THOUGHT])
        assert quiet.text(answer) == "<think>\n\n</think>\n\nSo it is \\boxed{42}."
        assert tokenizer.decode(answer) == "So it is \\boxed{42}.<|im_end|>"


def test_thinking_in_a_channel_of_its_own_is_judged_as_thinking():
    """Harmony: the model writes <|channel|>analysis…, of which a box is no answer."""
    tokenizer = words("gptoss")
    chat = ChatFormat.from_template(tokenizer)
    thinking = "<|channel|>analysis<|message|>It is \\boxed{41}, or"
    answer = "<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{42}<|return|>"

    def judged(text: str) -> Any:
        return extract_boxed(chat.text(tokenizer(text, add_special_tokens=False)["input_ids"]))

    assert judged(thinking + answer).answer == "42"
    assert "not closed" in judged(thinking).reason
    assert judged("<|channel|>final<|message|>\\boxed{42}<|return|>").answer == "42"


@pytest.mark.parametrize("template", TEMPLATES)
def test_an_answer_that_mentions_the_token_which_ends_answers_is_trained_to_its_own_end(template):
    chat = ChatFormat.from_template(words(template))
    end = chat.tokenizer.convert_ids_to_tokens(chat.closing[-1])
    text = f"Is it {end}{end}?\n\nEach turn ends with {end}, or </s>."
    (ids,) = chat.response_ids([text])
    assert [i for i in ids if i in chat.stops] == [chat.closing[-1]] == ids[-1:]
    assert chat.text(ids).endswith(text)


@pytest.mark.parametrize("pad", [None, "<|im_end|>"])
def test_special_think_tags_stay_and_padding_may_be_missing_or_the_end_of_turn(files, pad):
    tokenizer = load_tokenizer(files["checkpoint"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.pad_token = pad
    chat = ChatFormat.from_template(tokenizer)
    assert chat.text(chat.response_ids([THOUGHT])[0]) == THOUGHT


@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize("response", [THOUGHT, THOUGHT.replace("<think>\n", "<think>"), "42"])
def test_whatever_a_prompt_wrote_there_is_one_think_block(files, prefill, response):
    tokenizer = load_tokenizer(files["checkpoint"])
    tokenizer.chat_template = prefilling(prefill)
    chat = ChatFormat.from_template(tokenizer)
    assert chat.prefill == prefill.replace("\\n", "\n")
    (answer,) = chat.response_ids([response])
    assert has_closed_think(chat.text(answer))
    row = str(tokenizer.decode(chat.prompt_ids(["?"])[0] + answer))
    assert (row.count("<think>"), row.count("</think>")) == (1, 1)


def test_the_end_of_a_block_in_a_prompt_is_an_empty_one_and_words_about_tags_are_none(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    tokenizer.chat_template = prefilling("</think>")  # as DeepSeek-V3.1
    chat = ChatFormat.from_template(tokenizer)
    (answer,) = chat.response_ids([THOUGHT])
    assert chat.text(answer) == "<think></think>So it is \\boxed{42}."
    row = str(tokenizer.decode(chat.prompt_ids(["?"])[0] + answer))
    assert (row.count("</think>"), "6·7 = 42" in row) == (1, False)
    order = "(' Reason in <think> and </think>.' if message['role'] == 'user' else '')"
    content = "message['content'] +"
    tokenizer.chat_template = CHATML.replace(content, f"{content} {order} +")
    assert ChatFormat.from_template(tokenizer).prefill == ""


def test_thinking_that_a_closed_block_leaves_out_is_counted(files, capsys):
    tokenizer = load_tokenizer(files["checkpoint"])
    assert thinking_left_out(ChatFormat.from_template(tokenizer), [THOUGHT]) == 0
    tokenizer.chat_template = prefilling(PREFILLS[2])
    chat = ChatFormat.from_template(tokenizer)
    assert thinking_left_out(chat, [THOUGHT, "42", "<think>\n\n</think>\n42"]) == 1
    assert "sft.chat_template_kwargs" in capsys.readouterr().out


def test_a_base_model_gets_the_template_that_is_named_with_its_tokens(files, tmp_path):
    """Llama's tokens are no tokens of the small model: they are added, and its own end stops it."""
    settings = BaseModelSettings(model=str(files["checkpoint"]), chat_template="llama3")
    create_base(BaseJob(out=tmp_path, settings=settings))
    tokenizer, model = load_tokenizer(tmp_path / "checkpoint"), load_model(tmp_path / "checkpoint")
    chat = ChatFormat.from_template(tokenizer)
    assert tokenizer.convert_ids_to_tokens(chat.closing) == ["<|eot_id|>"] == [tokenizer.eos_token]
    assert chat.closing[-1] in model.generation_config.eos_token_id
    assert model.get_input_embeddings().num_embeddings >= len(tokenizer)
    file = tmp_path / "mine.jinja"
    file.write_text(prefilling("<think>"))
    settings = BaseModelSettings(model=str(files["checkpoint"]), chat_template=str(file))
    create_base(BaseJob(out=tmp_path / "file", settings=settings))
    assert (
        ChatFormat.from_template(load_tokenizer(tmp_path / "file/checkpoint")).prefill == "<think>"
    )


def test_a_model_without_template_and_without_the_tokens_of_chatml_is_refused_with_the_fix():
    bare = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), eos_token="</s>")
    with pytest.raises(ValueError, match=r"set base\.chat_template=chatml, which adds them"):
        give_template(bare, None)
    with pytest.raises(ValueError, match=r"base\.chat_template=nothing is neither"):
        give_template(bare, "nothing")


def test_a_checkpoint_says_how_it_is_asked_and_engines_ask_it_so(files, tmp_path):
    template = "{% if quiet %}<|im_start|>{% endif %}" + CHATML
    (tmp_path / "t.jinja").write_text(template)
    settings = BaseModelSettings(
        model=str(files["checkpoint"]), chat_template=str(tmp_path / "t.jinja"),
        chat_template_kwargs={"quiet": True},
    )  # fmt: skip
    create_base(BaseJob(out=tmp_path, settings=settings))
    assert json.loads((tmp_path / "checkpoint/chat_format.json").read_text()) == {
        "chat_template_kwargs": {"quiet": True}
    }
    loud = {"quiet": False}
    for kwargs, opened in ((None, 2), (loud, 1)):
        fields = {"kind": "transformers", "model": str(tmp_path / "checkpoint")}
        engine = LocalModel(EngineSettings(**fields, chat_template_kwargs=kwargs), Sampling())
        (ids,) = engine.chat.prompt_ids(["?"])
        assert str(engine.tokenizer.decode(ids)).count("<|im_start|>") == opened + 1


def test_an_engine_stops_at_every_end_that_model_or_template_name(files, tmp_path):
    model, tokenizer = load_model(files["checkpoint"]), load_tokenizer(files["checkpoint"])
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    model.generation_config = GenerationConfig(eos_token_id=[other])
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = LocalModel(EngineSettings(kind="transformers", model=str(tmp_path)), Sampling())
    ends = {other, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert set(engine.ends) == ends
    (ids,) = engine.chat.response_ids([THOUGHT])
    cut = engine.sample(Request("p", 0, "?"), 3, [*ids[:-1], other, *ids])
    assert (cut.text, cut.finish_reason) == (THOUGHT, "stop")


ANSWERS = {  # of the prompts 6·7 and 2·3; the second of each pair is wrong
    "math": ["<think>\n6·7\n</think>\n\n\\boxed{42}", "<think>\nhm\n</think>\n\n\\boxed{7}"],
    "code": ["<think>\na+b\n</think>\n\n```python\nprint(42)\n```", "<think>\n</think>\n\nno"],
}


@pytest.mark.parametrize(
    ("domain", "prefill"), [("math", PREFILLS[0]), ("math", PREFILLS[2]), ("code", PREFILLS[2])]
)
def test_rl_pays_an_answer_whose_prompt_wrote_its_beginning_as_any_other(
    files, tmp_path, domain, prefill
):
    """The empty block is the one whose model thinks all the same: it is paid as one that does."""
    suite = {"kind": "stdin", "cases": [{"input": "", "output": "42\n"}]}
    what = {"answer": "42"} if domain == "math" else {"tests": suite}
    problems = [
        Problem.model_validate({"domain": domain, "prompt": p, **what}) for p in ("a", "b", "c")
    ]
    write_table(tmp_path / "problems.parquet", Problem, problems)
    plain = ChatFormat.from_template(load_tokenizer(files["checkpoint"]))

    def answered(prompts, trainer, **_):
        texts = [ANSWERS[domain][i % 2] for i in range(len(prompts))]
        writer = plain if "</think>" in trainer.chat.prefill else trainer.chat
        prompt_ids = trainer.chat.prompt_ids([p[-1]["content"] for p in prompts])
        answers = writer.response_ids(texts)
        return {"prompt_ids": prompt_ids, "completion_ids": answers, "logprobs": None}

    settings = RL.model_copy(update={"domain": domain, "mini_batch_prompts": 2, "steps": 1})
    start = shutil.copytree(files["checkpoint"], tmp_path / "start")
    (start / "chat_template.jinja").write_text(prefilling(prefill))
    job = RLJob(out=tmp_path, checkpoint=start, problems=tmp_path / "problems.parquet",
                settings=settings, seed=5)  # fmt: skip
    with mock.patch.object(rl, "roll_out", answered):
        assert rl.run_rl(job)["rollouts_without_update"] == 0
    rows = list(read_table(tmp_path / "rollouts.parquet", RolloutRow))
    assert all(has_closed_think(r.text) and r.trained for r in rows)
    wrong, formed = (-1.0, 1.0) if domain == "math" else (0.0, 0.5)
    assert [(r.reward, r.verdict == "AC") for r in rows] == [
        (wrong, False) if r.index % 2 else (1.0, True) for r in rows
    ]
    line = json.loads((tmp_path / "logs/metrics.jsonl").read_text().splitlines()[0])
    assert line["metrics"]["reward/format"] == formed
    say = json.loads((tmp_path / "checkpoint/chat_format.json").read_text())
    assert say == {"question": "{prompt}"}


def test_a_prompt_of_text_that_opens_a_block_counts_as_the_beginning_of_its_answer(make_trainer):
    prefills = {
        "Q: 6·7?\n<think>\n": "<think>\n",
        "Think within <think> and </think>. 6·7?": "",
        "6·7?<think></think>": "<think></think>",
        "6·7?</think>": "<think></think>",
    }
    seen = set()

    def pay(prompts, completions, **_):
        seen.update(zip(prompts, completions, strict=True))
        return [float(i % 2) for i in range(len(completions))]

    def answered(prompts, trainer):
        ids = trainer._tokenizer(prompts)["input_ids"]
        answers = trainer._tokenizer(["42<|im_end|>"] * len(prompts))["input_ids"]
        return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}

    rows = Dataset.from_list([{"prompt": prompt} for prompt in prefills])
    make_trainer(pay, rollout_func=answered, train_dataset=rows).train()
    assert seen == {(prompt, prefill + "42") for prompt, prefill in prefills.items()}


def test_thinking_in_tags_that_nobody_named_is_refused_by_a_local_engine_and_read_when_named(files):
    tokenizer = load_tokenizer(files["checkpoint"])
    tags = ("[THINK]", "[/THINK]")
    tokenizer.add_special_tokens({"additional_special_tokens": list(tags)})
    text = "[THINK]It is \\boxed{41}.[/THINK]\\boxed{42}"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    def answer(think_tags: Any) -> Any:
        engine_settings = {"kind": "transformers", "model": str(files["checkpoint"])}
        engine = LocalModel(EngineSettings(**engine_settings, think_tags=think_tags), Sampling())
        engine.chat = ChatFormat.from_template(tokenizer)
        return engine.sample(Request("p", 0, "?"), 3, [*ids, *engine.chat.closing])

    with pytest.raises(EngineError, match=r"thinks in \[THINK\]…\[/THINK\].*set engine.think_tags"):
        answer(None)
    assert answer(tags).text == "<think>It is \\boxed{41}.</think>\\boxed{42}"
