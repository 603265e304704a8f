"""Byte-level BPE tokenizers: from a checkpoint's tokenizer.json, or rebuilt from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from quantkit.containers.gguf import GGUFFile, open_gguf
from quantkit.errors import ModelError
from quantkit.weights.checkpoint import read_json

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT_REGEX = {
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
    "qwen35": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
}
"""llama.cpp's name of a pre-tokenizer (`tokenizer.ggml.pre`) -> how it splits words."""

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Token types of `tokenizer.ggml.token_type`."""


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF says of a byte-level BPE tokenizer; `tokens[i]` has id i."""

    pre: str
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    eos_token_id: int | None
    bos_token_id: int | None
    padding_token_id: int | None
    chat_template: str | None


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder or a GGUF; ModelError if it is of another kind."""
    if (path / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(path / "tokenizer.json"))
    return tokenizer_from_gguf(open_gguf(path))


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`, without added begin or end tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Rebuild the tokenizer that a GGUF describes."""
    metadata = file.metadata
    kind = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in SPLIT_REGEX:
        raise ModelError(
            "a tokenizer that we cannot rebuild",
            file=file.path,
            value=f"model {kind!r}, pre-tokenizer {pre!r}",
            rule=f"byte-level BPE (gpt2) with {' or '.join(SPLIT_REGEX)}",
            hint="tokenize with the checkpoint folder that holds tokenizer.json",
        )
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_REGEX[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Both kinds are taken whole wherever they stand in a text; only control tokens are special.
    for kind, add in (
        (CONTROL, tokenizer.add_special_tokens),
        (USER_DEFINED, tokenizer.add_tokens),
    ):
        added = [token for token, found in zip(tokens, types, strict=True) if found == kind]
        add([AddedToken(t, special=kind == CONTROL, normalized=False) for t in added])
    return tokenizer


def read_vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    """What tokenizer.json and tokenizer_config.json of a checkpoint say, for a GGUF.

    Ids without a token (a padded embedding) become unused tokens. Raises ModelError for another
    kind of tokenizer, or one with more tokens than the embedding has rows.
    """
    spec = read_json(folder / "tokenizer.json")
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else {}
    model = spec.get("model", {})
    if model.get("type") != "BPE":
        raise ModelError(
            "a tokenizer that we cannot convert",
            file=folder / "tokenizer.json",
            value=model.get("type"),
            rule="byte-level BPE",
        )
    by_id = {number: token for token, number in model["vocab"].items()}
    types = dict.fromkeys(by_id, NORMAL)
    for added in spec.get("added_tokens", []):
        by_id[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if max(by_id) >= vocab_size:
        raise ModelError(
            "the tokenizer has more tokens than the embedding has rows",
            file=folder / "tokenizer.json",
            value=max(by_id) + 1,
            rule=f"at most {vocab_size}",
            hint="tokenizer and model do not belong together",
        )
    ids = {token: number for number, token in by_id.items()}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return Vocabulary(
        pre=_pre_tokenizer_name(folder, spec),
        tokens=[by_id.get(i, f"[PAD{i}]") for i in range(vocab_size)],
        token_types=[types.get(i, UNUSED) for i in range(vocab_size)],
        merges=merges,
        eos_token_id=_special(settings, ids, "eos_token"),
        bos_token_id=_special(settings, ids, "bos_token"),
        padding_token_id=_special(settings, ids, "pad_token"),
        chat_template=_chat_template(folder, settings),
    )


def _pre_tokenizer_name(folder: Path, spec: dict[str, Any]) -> str:
    found = spec.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", [found])
    patterns = [step["pattern"].get("Regex") for step in steps if step.get("type") == "Split"]
    for name, regex in SPLIT_REGEX.items():
        if patterns == [regex]:
            return name
    raise ModelError(
        "a pre-tokenizer that llama.cpp has no name for in our table",
        file=folder / "tokenizer.json",
        value=patterns,
        rule=f"the regular expression of {' or '.join(SPLIT_REGEX)}",
        hint="tokens would be split differently in llama.cpp, so the file is not written",
    )


def _special(settings: dict[str, Any], ids: dict[str, int], name: str) -> int | None:
    token = settings.get(name)
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else ids.get(content)


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None
