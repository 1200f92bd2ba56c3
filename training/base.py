"""The base model: a pretrained one, or (tiny profile) a small Qwen3 created from a seed."""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ..configs.settings.training import BaseModelSettings
from ..eval.records import Example
from ..eval.records.tables import read_table
from . import models, render
from .launch.jobs import BaseJob
from .launch.result_files import CHECKPOINT
from .render import TURN_END, TURN_START

PAD, END_OF_TEXT = "<|pad|>", "<|endoftext|>"
THINK_TAGS = [render.THINK_OPEN, render.THINK_CLOSE]
CORPUS_EXAMPLES = 6_000
_NUMBERS = r"\d{1,2}|[+*/%()=<>-]|, |\n|,|[^\d+*/%()=<>\n,-]+"  # they stay short
_PIECES = {"words": Regex(_NUMBERS), "lines": Regex(_NUMBERS + r"[=\n]?")}
COMMON = 4  # a line is common that one chat in so many has


def create_base(job: BaseJob) -> dict[str, float]:
    """Write `job.out/checkpoint`: weights, tokenizer with chat template, generation config."""
    s, lineage, question = job.settings, [], ""
    if s.kind == "random":
        assert job.examples is not None, "the stage gives the corpus of the tokenizer"
        texts = corpus(read_table(job.examples, Example), job.seed)
        tokenizer = small_tokenizer(texts, s.vocabulary, s.tokens)
        model = small_model(s, tokenizer, job.seed)
        chat = render.ChatFormat.from_template(tokenizer)
        start = f"random weights, seed {job.seed}"
    else:
        # the commit that the revision of a hub model means now; a local folder has none
        config = AutoConfig.from_pretrained(s.model, revision=s.revision, **models.NO_CODE)
        if hasattr(config, "vision_config"):
            raise ValueError(
                f"{s.model} reads images, too, and klear trains text alone: name its text model"
            )
        commit = getattr(config, "_commit_hash", None) or s.revision
        tokenizer = models.load_tokenizer(s.model, commit)
        model = models.load_model(s.model, revision=commit)
        own, kwargs = render.read_chat_file(s.model, commit), s.chat_template_kwargs
        kwargs = own.get("chat_template_kwargs") if kwargs is None else kwargs
        question = own.get("question", "")
        chat = prepare_for_chat(model, tokenizer, s.chat_template, kwargs)
        if s.positions is not None:
            model.config.max_position_embeddings = s.positions
        start = f"{s.model}@{commit}"
        if Path(s.model).is_dir():  # a model of ours that is taken up again keeps its history
            start, lineage = models.public_name(s.model), models.read_lineage(s.model)
    lineage.append(models.step_of("base", start, job.seed, s))
    models.save_model(model, tokenizer, job.out / CHECKPOINT, lineage, chat.kwargs, question)
    return {"parameters": float(model.num_parameters()), "vocabulary": float(len(tokenizer))}


def corpus(examples: Iterable[Example], seed: int) -> list[str]:
    """At most `CORPUS_EXAMPLES` chats (roles, prompt, answer), drawn with `seed`, domains alike."""
    by_domain: dict[str, list[str]] = {}
    for e in examples:
        by_domain.setdefault(e.domain, []).append(f"user\n{e.prompt}\nassistant\n{e.response}")
    rng, share = random.Random(seed), CORPUS_EXAMPLES // max(1, len(by_domain))
    drawn = (rng.sample(t, min(share, len(t))) for _, t in sorted(by_domain.items()))
    return [text for texts in drawn for text in texts]


def small_tokenizer(
    texts: Sequence[str], vocabulary: int, tokens: Literal["words", "lines"] = "words"
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over numbers of two digits, operators and words: no text is unknown. With
    `lines` a common line is one token, and so is a word with the `=` or line break after it."""
    unsplit = [*THINK_TAGS]
    if tokens == "lines":
        counts = Counter(line for text in texts for line in set(text.splitlines(keepends=True)))
        unsplit += sorted(line for line, n in counts.items() if n * COMMON >= len(texts))
    bpe = Tokenizer(BPE())
    split = pre_tokenizers.Split(_PIECES[tokens], "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(unsplit),
        special_tokens=[PAD, END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(unsplit)  # plain tokens, as Qwen3's think tags: decoding keeps them
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=TURN_END,
        additional_special_tokens=[END_OF_TEXT, TURN_START],
        clean_up_tokenization_spaces=False,
    )
    render.give_template(tokenizer, None)
    return tokenizer


def small_model(s: BaseModelSettings, tokenizer: PreTrainedTokenizerBase, seed: int):
    """A Qwen3 of about a million parameters, fp32, initialised from `seed`."""
    end: Any = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=s.hidden,
        intermediate_size=s.mlp,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.kv_heads,
        head_dim=s.head_dim,
        max_position_embeddings=s.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=s.initializer_range,
        pad_token_id=pad,  # type: ignore[arg-type]
        eos_token_id=end,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    return model


def prepare_for_chat(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> render.ChatFormat:  # fmt: skip
    """Give a pretrained model `template`, if any, with its tokens (see `render.give_template`), and
    make the end of its turn stop it. Raises ValueError for what cannot be asked."""
    if render.give_template(tokenizer, template):
        model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size))
    chat = render.ChatFormat.from_template(tokenizer, kwargs)
    config = model.generation_config or GenerationConfig()
    own = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    stops = [chat.closing[-1], tokenizer.eos_token_id, *own]
    if tokenizer.pad_token_id is None:
        padding = END_OF_TEXT if END_OF_TEXT in tokenizer.get_vocab() else tokenizer.eos_token
        tokenizer.pad_token = padding or tokenizer.convert_ids_to_tokens(chat.closing[-1])
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(chat.closing[-1])
    config.eos_token_id = list(dict.fromkeys(i for i in stops if isinstance(i, int)))
    config.pad_token_id = tokenizer.pad_token_id
    model.generation_config = config
    return chat
