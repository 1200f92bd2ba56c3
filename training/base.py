"""The base model: a pretrained one, or (tiny profile) a small Qwen3 created from a seed."""

import random
from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from configs.training_stages import BaseModelSettings
from eval.records import Example
from eval.tables import read_table
from training.checkpoints import save_model
from training.jobs import BaseJob
from training.render import (
    CHAT_TEMPLATE,
    THINK_CLOSE,
    THINK_OPEN,
    TURN_END,
    TURN_START,
    end_of_turn,
)

PAD, END_OF_TEXT = "<|pad|>", "<|endoftext|>"
THINK_TAGS = [THINK_OPEN, THINK_CLOSE]
CORPUS_EXAMPLES = 6_000
_PIECES = Regex(r"\d{1,2}|[+*/%()=<>-]|, |\n|[^\d+*/%()=<>\n,-]+|,")  # numbers stay short


def create_base(job: BaseJob) -> dict[str, float]:
    """Write `job.out/checkpoint`: weights, tokenizer with chat template, generation config."""
    s = job.settings
    if s.kind == "random":
        examples = read_table(job.examples, Example)
        tokenizer = small_tokenizer(corpus(examples, job.seed), s.vocabulary)
        model = small_model(s, tokenizer, job.seed)
    else:
        tokenizer = AutoTokenizer.from_pretrained(s.model, revision=s.revision)
        model = AutoModelForCausalLM.from_pretrained(s.model, revision=s.revision, dtype="auto")
        prepare_for_chat(model, tokenizer)
    save_model(model, tokenizer, job.out / "checkpoint")
    return {"parameters": float(model.num_parameters()), "vocabulary": float(len(tokenizer))}


def corpus(examples: Iterable[Example], seed: int) -> list[str]:
    """At most `CORPUS_EXAMPLES` chats (roles, prompt, answer), drawn with `seed`, domains alike."""
    by_domain: dict[str, list[str]] = {}
    for e in examples:
        by_domain.setdefault(e.domain, []).append(f"user\n{e.prompt}\nassistant\n{e.response}")
    rng = random.Random(seed)
    share = CORPUS_EXAMPLES // max(1, len(by_domain))
    drawn = (rng.sample(t, min(share, len(t))) for _, t in sorted(by_domain.items()))
    return [text for texts in drawn for text in texts]


def small_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE over numbers of two digits, operators and words: no text is unknown."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(_PIECES, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(THINK_TAGS),
        special_tokens=[PAD, END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens(THINK_TAGS)  # plain tokens, as Qwen3: decoding keeps them
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=TURN_END,
        additional_special_tokens=[END_OF_TEXT, TURN_START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def small_model(s: BaseModelSettings, tokenizer: PreTrainedTokenizerBase, seed: int):
    """A Qwen3 of about a million parameters, fp32, initialised from `seed`."""
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
        pad_token_id=tokenizer.pad_token_id,  # type: ignore[arg-type]
        eos_token_id=end_of_turn(tokenizer),
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=end_of_turn(tokenizer),
        pad_token_id=config.pad_token_id,
    )
    return model


def prepare_for_chat(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a pretrained base model a chat template and an end-of-turn token that stops it."""
    if tokenizer.chat_template is None:
        tokenizer.chat_template = CHAT_TEMPLATE
    vocabulary = tokenizer.get_vocab()
    missing = [t for t in (TURN_START, TURN_END) if t not in vocabulary]
    if missing:
        raise ValueError(
            f"the tokenizer of {model.name_or_path} lacks {missing}; use a model whose vocabulary "
            f"has the ChatML tokens (Qwen3-8B-Base has)"
        )
    stops = [vocabulary[TURN_END], tokenizer.eos_token_id]
    tokenizer.eos_token = TURN_END
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = END_OF_TEXT
    config = model.generation_config or GenerationConfig()
    config.eos_token_id = list(dict.fromkeys(i for i in stops if isinstance(i, int)))
    config.pad_token_id = tokenizer.pad_token_id
    model.generation_config = config
