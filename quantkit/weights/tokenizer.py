"""Byte-level BPE tokenizers: loaded from a checkpoint, or rebuilt from GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from quantkit.containers.gguf import GGUFFile, open_gguf
from quantkit.errors import ModelError
from quantkit.models.fields import Fields, is_text, shown
from quantkit.weights.checkpoint import read_json, read_text

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
HIGHEST_TYPE = 6
"""BYTE, the last type that llama.cpp knows."""


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
    """The tokenizer of a checkpoint folder or a GGUF; ModelError if it is none we can use."""
    file = path / "tokenizer.json"
    if file.is_file():
        return _parsed(file)
    return tokenizer_from_gguf(open_gguf(path))


def _parsed(file: Path) -> Tokenizer:
    text = read_text(file)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:
        # The library raises this very class whatever is wrong; its subclasses are none of its own.
        if type(error) is not Exception:
            raise
        raise ModelError(
            "a tokenizer that cannot be loaded",
            file=file,
            value=str(error),
            rule="a tokenizer.json of the tokenizers library",
            hint="check that the download is complete",
        ) from error


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text`, without added begin or end tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Rebuild the tokenizer that a GGUF describes."""
    keys = Fields(
        file.metadata,
        source="the metadata",
        noun="key",
        prefix="tokenizer.ggml.",
        needed_by="a tokenizer has it",
        hint="tokenize with the checkpoint folder that holds tokenizer.json",
        file=file.path,
    )
    pre = _known_kind(keys, file.path)
    tokens = keys.texts("tokens")
    types = keys.integers("token_type", high=HIGHEST_TYPE, default=(NORMAL,) * len(tokens))
    if len(types) != len(tokens):
        raise keys.invalid("token_type", list(types), f"one for each of {len(tokens)} tokens")
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocab[token] != number)
        raise keys.invalid("tokens", twice, "each token once")
    if not vocab or "" in vocab:
        raise keys.invalid("tokens", list(tokens), "tokens, none of them empty")
    merges = _checked_merges(keys, "merges", keys.texts("merges"), vocab)
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


def _known_kind(keys: Fields, file: Path) -> str:
    """The pre-tokenizer's name, if it is one that we can rebuild."""
    kind, pre = (keys.text(key, default="none") for key in ("model", "pre"))
    if kind != "gpt2" or pre not in SPLIT_REGEX:
        raise ModelError(
            "a tokenizer that we cannot rebuild",
            file=file,
            value=f"model {kind!r}, pre-tokenizer {pre!r}",
            rule=f"byte-level BPE (gpt2) with {' or '.join(SPLIT_REGEX)}",
            hint="tokenize with the checkpoint folder that holds tokenizer.json",
        )
    return pre


def _checked_merges(
    fields: Fields, key: str, merges: Iterable[str], vocab: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Both halves of each merge ("a b"); they and what they make are tokens of `vocab`."""
    found: list[tuple[str, str]] = []
    for number, merge in enumerate(merges):
        first, _, second = merge.partition(" ")
        if not {first, second, first + second} <= vocab.keys():
            rule = "two tokens with a space between, whose union is a token too"
            raise fields.invalid(f"{key}[{number}]", merge, rule)
        found.append((first, second))
    return found


def read_vocabulary(folder: Path, vocab_size: int) -> Vocabulary:
    """What tokenizer.json and tokenizer_config.json of a checkpoint say, for a GGUF.

    Ids without a token (a padded embedding) become unused tokens. Raises ModelError for another
    kind of tokenizer, one that is damaged, or one with more tokens than the embedding has rows.
    """
    spec = _fields_of(folder / "tokenizer.json")
    settings_path = folder / "tokenizer_config.json"
    settings = _fields_of(settings_path) if settings_path.is_file() else None
    model = spec.section("model")
    if model.text("type", default="none") != "BPE":
        raise ModelError(
            "a tokenizer that we cannot convert",
            file=folder / "tokenizer.json",
            value=model.text("type", default="none"),
            rule="byte-level BPE",
        )
    trained = _trained_tokens(model)
    by_id = {number: token for token, number in trained.items()}
    types = dict.fromkeys(by_id, NORMAL)
    for added in spec.sections("added_tokens"):
        number, content = added.integer("id", low=0), added.text("content")
        if by_id.setdefault(number, content) != content:
            raise added.invalid("id", number, f"another than that of {shown(by_id[number])}")
        types[number] = CONTROL if added.flag("special", default=False) else USER_DEFINED
    if len(set(by_id.values())) != len(by_id):
        raise spec.invalid("added_tokens", spec.value("added_tokens"), "each token once")
    if max(by_id) >= vocab_size:
        raise ModelError(
            "the tokenizer has more tokens than the embedding has rows",
            file=folder / "tokenizer.json",
            value=max(by_id) + 1,
            rule=f"at most {vocab_size}",
            hint="tokenizer and model do not belong together",
        )
    ids = {by_id[number]: number for number, kind in types.items() if kind != NORMAL}
    merges = _checked_merges(model, "merges", _merges(model), trained)
    _refuse_lost_merges(model, merges, (by_id[i] for i, kind in types.items() if kind == NORMAL))
    return Vocabulary(
        pre=_pre_tokenizer_name(folder, spec),
        tokens=[by_id.get(i, f"[PAD{i}]") for i in range(vocab_size)],
        token_types=[types.get(i, UNUSED) for i in range(vocab_size)],
        merges=[f"{first} {second}" for first, second in merges],
        eos_token_id=_special(settings, ids, "eos_token"),
        bos_token_id=_special(settings, ids, "bos_token"),
        padding_token_id=_special(settings, ids, "pad_token"),
        chat_template=_chat_template(folder, settings),
    )


def _fields_of(file: Path) -> Fields:
    return Fields(
        read_json(file),
        source=file.name,
        needed_by="a tokenizer has it",
        hint="check that the download is complete and the file belongs to this checkpoint",
        file=file,
    )


def _trained_tokens(model: Fields) -> dict[str, int]:
    """Token -> id of the vocabulary proper, each id once."""
    vocab = model.section("vocab")
    found = {}
    for token in vocab.entries():
        if not token or not is_text(token):
            raise model.invalid("vocab", token, "tokens are texts in UTF-8, none of them empty")
        found[token] = vocab.integer(token, low=0)
    if len(set(found.values())) != len(found) or not found:
        raise model.invalid("vocab", vocab.entries(), "tokens, each with an id of its own")
    return found


def _merges(model: Fields) -> list[str]:
    """Merges as texts "a b"; newer files have them as pairs."""
    found: list[str] = []
    for number, merge in enumerate(model.items("merges")):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(map(is_text, parts)):
            raise model.invalid(f"merges[{number}]", merge, "two tokens")
        found.append(" ".join(parts))
    return found


def _refuse_lost_merges(
    model: Fields, merges: list[tuple[str, str]], normal: Iterable[str]
) -> None:
    """A long token that no merge makes is never found in a text: most of them must have one.

    Not all: some published vocabularies have a few that only their library's shortcuts reach.
    """
    long_tokens = {token for token in normal if len(token) > 1}
    made = {first + second for first, second in merges}
    if 2 * len(long_tokens & made) < len(long_tokens):
        raise model.invalid(
            "merges",
            f"{len(merges)} merges, {len(long_tokens)} tokens of several characters",
            "a merge for each token of several characters",
        )


def _pre_tokenizer_name(folder: Path, spec: Fields) -> str:
    whole = spec.section("pre_tokenizer")
    steps = whole.sections("pretokenizers") if whole.has("pretokenizers") else [whole]
    patterns = [
        step.section("pattern").text("Regex", default="none")
        for step in steps
        if step.text("type", default="none") == "Split"
    ]
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


def _special(settings: Fields | None, ids: Mapping[str, int], name: str) -> int | None:
    """The id of a special token, which the settings give as a text or as a record with one.

    An added token of that name must exist: one of the vocabulary alone would be cut like any word.
    """
    if settings is None or not settings.has(name):
        return None
    if isinstance(settings.value(name), dict):
        content = settings.section(name).text("content")
    else:
        content = settings.text(name)
    if content not in ids:
        raise settings.invalid(name, content, "one of tokenizer.json's added tokens")
    return ids[content]


def _chat_template(folder: Path, settings: Fields | None) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return read_text(file)
    if settings is None or not settings.has("chat_template"):
        return None
    # Several templates by name: a GGUF's key holds one, and none of them is the one.
    return (
        None
        if isinstance(settings.value("chat_template"), list)
        else settings.text("chat_template")
    )
