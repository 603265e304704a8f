"""A training corpus on disk: its tokenizer, its tokens, its documents and its figures.

| file | holds |
|---|---|
| `train.npy` | uint16 token ids, every document followed by the end-of-text token |
| `heldout.npz` | the same as `tokens`, cut by `offsets` (documents + 1); per document `source`,
`path`, `language` and `nbytes` |
| `train.jsonl`, `heldout.jsonl` | a document a line, `key` and `text`, in the order of the tokens |
| `tokenizer/` | what transformers loads |
| `stats.json` | documents, bytes and tokens by source and language, and the files' sha256 |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from quantkit.capture.texts.build import Document
from quantkit.capture.texts.corpus import Corpus, read_corpus
from quantkit.capture.texts.recipe import CorpusRecipe
from quantkit.capture.texts.tokenizer import (
    END_OF_TEXT,
    TOKENIZER_FILES,
    save_tokenizer,
    train_tokenizer,
)
from quantkit.containers.hashing import sha256_file
from quantkit.errors import TextError
from quantkit.files import atomic_paths
from quantkit.progress import log, track

TRAIN_TOKENS = "train.npy"
HELDOUT_TOKENS = "heldout.npz"
TRAIN_TEXTS = "train.jsonl"
HELDOUT_TEXTS = "heldout.jsonl"
STATS = "stats.json"
ENCODE_BATCH = 256

Ids = NDArray[np.uint16]


def build_training_corpus(recipe: CorpusRecipe, deb_dir: Path, out: Path) -> dict[str, Any]:
    """Build the corpus of `recipe` from the packages in `deb_dir` into the folder `out`.

    Returns what `stats.json` says. Raises TextError for a source that is missing or another one
    than the recipe's, and, before anything is written, for a file whose sha256 is not the one
    that the recipe promises.
    """
    corpus = read_corpus(recipe, [deb_dir])
    log(f"train a tokenizer of {recipe.vocab_size} tokens on {len(corpus.train)} documents")
    tokenizer = train_tokenizer((d.text for d in corpus.train), recipe.vocab_size)
    train = _encode(tokenizer, corpus.train, "encode the training side")
    heldout = _encode(tokenizer, corpus.heldout, "encode the held-out side")
    stats = _stats(recipe, corpus, train, heldout)
    folder = out / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    finals = [out / n for n in (STATS, TRAIN_TOKENS, HELDOUT_TOKENS, TRAIN_TEXTS, HELDOUT_TEXTS)]
    named = [folder / name for name in TOKENIZER_FILES]
    with atomic_paths(finals) as paths, atomic_paths(named) as tokenizer_paths:
        np.save(paths[1], np.concatenate(train))
        np.savez(paths[2], **_heldout_arrays(recipe, corpus.heldout, heldout))  # type: ignore[arg-type]
        _write_texts(paths[3], corpus.train)
        _write_texts(paths[4], corpus.heldout)
        save_tokenizer(tokenizer, tokenizer_paths, recipe.context_length)
        stats["sha256"] = {path.name: sha256_file(path) for path in paths[1:]}
        stats["sha256"] |= {f"tokenizer/{p.name}": sha256_file(p) for p in tokenizer_paths}
        _check_outputs(recipe.outputs, stats["sha256"])
        paths[0].write_text(json.dumps(stats, indent=1) + "\n", "utf-8")
    return stats


def _encode(tokenizer: Tokenizer, documents: Sequence[Document], label: str) -> list[Ids]:
    end = tokenizer.token_to_id(END_OF_TEXT)
    starts = range(0, len(documents), ENCODE_BATCH)
    ids: list[Ids] = []
    for start in track(starts, label, len(starts)):
        texts = [document.text for document in documents[start : start + ENCODE_BATCH]]
        encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
        ids += [np.asarray([*one.ids, end], dtype=np.uint16) for one in encoded]
    return ids


def _heldout_arrays(
    recipe: CorpusRecipe, documents: Sequence[Document], ids: Sequence[Ids]
) -> dict[str, NDArray[Any]]:
    return {
        "tokens": np.concatenate(ids),
        "offsets": np.cumsum([0, *map(len, ids)], dtype=np.int64),
        "source": np.array([document.source for document in documents]),
        "path": np.array([document.path for document in documents]),
        "language": np.array([recipe.sources[d.source].language for d in documents]),
        "nbytes": np.array([document.nbytes for document in documents], dtype=np.int64),
    }


def _write_texts(path: Path, documents: Sequence[Document]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            line = {"key": document.key, "text": document.text}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _stats(
    recipe: CorpusRecipe, corpus: Corpus, train: Sequence[Ids], heldout: Sequence[Ids]
) -> dict[str, Any]:
    sides = {"train": (corpus.train, train), "heldout": (corpus.heldout, heldout)}
    languages = dict.fromkeys(source.language for source in recipe.sources.values())
    by_source: dict[str, Any] = {}
    for name, source in recipe.sources.items():
        by_source[name] = {
            "language": source.language,
            "revision": source.revision,
            "found": corpus.found[name]._asdict(),
            "kept": corpus.kept[name]._asdict(),
        } | {side: _count(*pair, {name}) for side, pair in sides.items()}
    by_language = {
        side: {language: _count(*pair, _names(recipe, language)) for language in languages}
        | {"total": _count(*pair, set(recipe.sources))}
        for side, pair in sides.items()
    }
    return {"sources": by_source} | by_language


def _names(recipe: CorpusRecipe, language: str) -> set[str]:
    return {name for name, source in recipe.sources.items() if source.language == language}


def _count(documents: Sequence[Document], ids: Sequence[Ids], names: set[str]) -> dict[str, int]:
    chosen = [(d.nbytes, len(i)) for d, i in zip(documents, ids, strict=True) if d.source in names]
    return {
        "documents": len(chosen),
        "bytes": sum(nbytes for nbytes, _ in chosen),
        "tokens": sum(tokens for _, tokens in chosen),
    }


def _check_outputs(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    for name, sha256 in expected.items():
        if actual.get(name) != sha256:
            raise TextError(
                "the corpus is not the one that the recipe promises",
                value=f"{name}: sha256 {actual.get(name, 'not an output of this recipe')}",
                rule=f"{name}: sha256 {sha256}",
                hint="the same packages, kept-out texts and version of tokenizers make the same "
                "bytes; drop `outputs` from the recipe to build another corpus",
            )
