"""The byte-level BPE tokenizer of the embedded model.

Pre-tokenization is the split that llama.cpp calls `qwen35`, so that the same text becomes the same
tokens in transformers and in llama.cpp. There is no normalizer: llama.cpp has none either, and
the corpus is in NFC already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from quantkit.weights.tokenizer import SPLIT_REGEX

PRE_TOKENIZER = "qwen35"
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, "<|im_start|>", "<|im_end|>")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a tokenizer of exactly `vocab_size` tokens, the special ones (ids 0-2) included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_REGEX[PRE_TOKENIZER]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, paths: Sequence[Path], context_length: int) -> None:
    """Write the files that transformers loads as `PreTrainedTokenizerFast`.

    `paths` are where to put TOKENIZER_FILES, in that order.
    """
    roles = {
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "bos_token": None,
        **roles,
        "chat_template": CHAT_TEMPLATE,
    }
    tokenizer.save(str(paths[0]), pretty=True)
    for path, data in zip(paths[1:], (config, roles), strict=True):
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", "utf-8")
