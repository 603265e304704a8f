"""Building a training corpus, on small packages and, where the packages are, the real one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from quantkit.capture.texts import Document, dump_manifest, load_manifest, load_recipe, run_set
from quantkit.capture.texts.corpus import choose_heldout, key_fraction, read_corpus
from quantkit.capture.texts.dataset import build_training_corpus
from quantkit.capture.texts.overlap import shares_run
from quantkit.errors import TextError
from tests.capture.conftest import (
    KEPT_OUT_PAGE,
    LICENCE_BLOCK,
    NOTICE,
    PAGES,
    SmallCorpus,
    prose,
)
from tests.capture.helpers import make_deb
from tests.capture.test_calib import DEB_DIR, deb_dirs

RECIPE = Path(__file__).parents[2] / "recipes" / "embedded" / "corpus.yaml"


def edit(corpus: SmallCorpus, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the recipe on disk."""
    data = yaml.safe_load(corpus.recipe.read_text("utf-8"))
    change(data)
    corpus.recipe.write_text(yaml.safe_dump(data, sort_keys=False), "utf-8")


def build(corpus: SmallCorpus, out: Path) -> dict[str, Any]:
    return build_training_corpus(load_recipe(corpus.recipe), corpus.debs, out)


def test_documents_near_a_kept_out_text_are_dropped(small_corpus: SmallCorpus) -> None:
    corpus = read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    runs = run_set([small_corpus.kept_out])
    documents = [*corpus.train, *corpus.heldout]
    assert not any(shares_run(document.text, runs) for document in documents)
    keys = {document.key for document in documents}
    assert f"guide/doc/{KEPT_OUT_PAGE}.html" not in keys
    assert len(keys) == len(documents) == 3 * PAGES - 1
    assert corpus.found["guide"].documents == PAGES
    assert corpus.kept["guide"].documents == PAGES - 1
    assert corpus.kept["library"] == corpus.found["library"]


def test_a_run_that_deduplication_makes_is_noticed(small_corpus: SmallCorpus) -> None:
    words = prose("joined", 24).split()
    first, second = " ".join(words[:11]), " ".join(words[11:])
    block = prose("block that stands on two pages", 60)
    pages = {
        f"doc/{i}.html": f"<p>{first}</p><p>{block}</p><p>{second}</p><p>{prose(i)}</p>".encode()
        for i in "abc"
    }
    make_deb(small_corpus.debs, pages, package="late")
    folder = small_corpus.recipe.parent
    kept = load_manifest(folder / "kept.yaml")
    text = f"{first} {second[:30]}"
    sha256, nbytes = hashlib.sha256(text.encode()).hexdigest(), len(text.encode())
    altered = replace(kept, sha256=sha256, bytes=nbytes)
    (folder / "kept.yaml").write_text(dump_manifest(altered), "utf-8")
    (folder / "kept.txt").write_text(text, "utf-8")
    late = {"kind": "deb", "package": "late", "revision": "1.0-1", "licence": "MIT"}
    late |= {"language": "en", "extract": "html"}
    edit(small_corpus, lambda data: data["sources"].update(late=late))
    corpus = read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    assert corpus.kept["late"].documents == 3
    # Without the block, which only the first page keeps, the two others hold the run.
    assert sum(d.source == "late" for d in (*corpus.train, *corpus.heldout)) == 1


def test_repetitions_go(small_corpus: SmallCorpus) -> None:
    edit(small_corpus, lambda data: data.update(keep_out=[]))
    corpus = read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    texts = [document.text for document in (*corpus.heldout, *corpus.train)]
    assert sum(NOTICE in text for text in texts) == 3
    assert sum(LICENCE_BLOCK.strip() in text for text in texts) == 1
    assert any(LICENCE_BLOCK.strip() in document.text for document in corpus.heldout)
    assert all(
        "if x:\n    pass" in document.text
        for document in corpus.train
        if document.source == "library"
    )


def test_the_split_is_by_source_and_stays(small_corpus: SmallCorpus) -> None:
    edit(small_corpus, lambda data: data.update(keep_out=[]))
    before = read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    held = {document.key for document in before.heldout}
    for source in ("guide", "handbuch", "library"):
        assert sum(key.startswith(f"{source}/") for key in held) == PAGES // 10
    edit(small_corpus, lambda data: data["sources"].pop("guide"))
    after = read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    assert {d.key for d in after.heldout} == {k for k in held if not k.startswith("guide/")}
    order = [d.key for d in before.train if d.source != "guide"]
    assert [d.key for d in after.train] == order


def test_big_documents_are_not_held_out(small_corpus: SmallCorpus) -> None:
    recipe = load_recipe(small_corpus.recipe)
    corpus = read_corpus(recipe, [small_corpus.debs])
    biggest = max(document.nbytes for document in (*corpus.train, *corpus.heldout))
    edit(small_corpus, lambda data: data.update(heldout_max_document_bytes=1))
    assert not choose_heldout(corpus.train, load_recipe(small_corpus.recipe))
    edit(small_corpus, lambda data: data.update(heldout_max_document_bytes=biggest))
    assert choose_heldout(corpus.train, load_recipe(small_corpus.recipe))


def test_the_held_out_documents_have_the_smallest_hashes(small_corpus: SmallCorpus) -> None:
    documents = [Document("guide", f"doc/{number}.html", "text\n") for number in range(50)]
    by_hash = sorted(
        (hashlib.sha256(f"split:{document.key}".encode()).digest(), document.key)
        for document in documents
    )
    chosen = choose_heldout(documents, load_recipe(small_corpus.recipe))
    assert chosen == {key for _, key in by_hash[:5]}


def test_key_fractions_are_spread() -> None:
    fractions = [key_fraction("split", f"a/{number}") for number in range(1000)]
    assert 0 <= min(fractions) < 0.01
    assert 0.99 < max(fractions) < 1
    assert abs(np.mean(fractions) - 0.5) < 0.05
    assert key_fraction("order", "a/1") != key_fraction("split", "a/1")


def test_files(small_corpus: SmallCorpus, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    stats = build(small_corpus, out)
    assert stats == json.loads((out / "stats.json").read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(out / "tokenizer" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 400
    heldout = np.load(out / "heldout.npz")
    tokens, offsets = heldout["tokens"], heldout["offsets"]
    documents = [json.loads(line) for line in (out / "heldout.jsonl").open(encoding="utf-8")]
    for i, document in enumerate(documents):
        ids = tokens[offsets[i] : offsets[i + 1]]
        assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == document["text"]
        assert ids[-1] == tokenizer.token_to_id("<|endoftext|>")
        assert f"{heldout['source'][i]}/{heldout['path'][i]}" == document["key"]
        assert heldout["nbytes"][i] == len(document["text"].encode())
    assert len(offsets) == len(documents) + 1
    train = np.load(out / "train.npy")
    assert train.dtype == np.uint16
    texts = tokenizer.decode(train, skip_special_tokens=False).split("<|endoftext|>")
    lines = [json.loads(line) for line in (out / "train.jsonl").open(encoding="utf-8")]
    assert texts == [*(line["text"] for line in lines), ""]
    for side, size in (("train", len(train)), ("heldout", len(tokens))):
        languages = [stats[side][language]["tokens"] for language in ("en", "de", "code")]
        assert sum(languages) == stats[side]["total"]["tokens"] == size
        assert sum(s[side]["tokens"] for s in stats["sources"].values()) == size


def test_same_packages_same_bytes(small_corpus: SmallCorpus, tmp_path: Path) -> None:
    first, second = (build(small_corpus, tmp_path / name)["sha256"] for name in ("1", "2"))
    assert first == second
    assert len(first) == 7
    for name in first:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_promised_outputs(small_corpus: SmallCorpus, tmp_path: Path) -> None:
    actual = build(small_corpus, tmp_path / "1")["sha256"]
    edit(small_corpus, lambda data: data.update(outputs=actual))
    build(small_corpus, tmp_path / "2")
    edit(small_corpus, lambda data: data["outputs"].update({"train.npy": "00" * 32}))
    with pytest.raises(TextError, match="not the one that the recipe promises") as error:
        build(small_corpus, tmp_path / "3")
    assert actual["train.npy"] in str(error.value)
    assert [path.name for path in (tmp_path / "3").rglob("*")] == ["tokenizer"]


def test_another_package_is_refused(small_corpus: SmallCorpus, tmp_path: Path) -> None:
    deb = make_deb(small_corpus.debs, {"doc/0.html": b"<p>new</p>"}, package="guide")
    with pytest.raises(TextError, match="guide is not the package of the recipe") as error:
        build(small_corpus, tmp_path)
    assert error.value.file == str(deb)
    edit(small_corpus, lambda data: data["sources"]["guide"].pop("archive_sha256"))
    deb.rename(deb.with_name("guide_1.1_all.deb"))
    with pytest.raises(TextError, match=r"value: 1\.1 ") as error:
        build(small_corpus, tmp_path)


def test_overlapping_or_altered_kept_out_texts(small_corpus: SmallCorpus) -> None:
    folder = small_corpus.recipe.parent
    edit(small_corpus, lambda data: data.update(keep_out=["kept.yaml", "./kept.yaml"]))
    with pytest.raises(TextError, match="overlap"):
        read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])
    edit(small_corpus, lambda data: data.update(keep_out=["kept.yaml"]))
    (folder / "kept.txt").write_text("altered", "utf-8")
    with pytest.raises(TextError, match="differs from its manifest"):
        read_corpus(load_recipe(small_corpus.recipe), [small_corpus.debs])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "quantkit.text/1"}, "quantkit.corpus/1"),
        ({"heldout_share": 1.5}, "field 'heldout_share'"),
        ({"vocab_size": "4096"}, "field 'vocab_size'"),
        ({"keep_out": "a.yaml"}, "field 'keep_out'"),
        ({"sources": ["a"]}, "field 'sources'"),
        ({"outputs": {"train.npy": "x"}}, r"field 'outputs\.train\.npy'"),
        ({"surprise": 1}, "field 'surprise'"),
    ],
)
def test_bad_recipes(small_corpus: SmallCorpus, change: dict[str, Any], message: str) -> None:
    edit(small_corpus, lambda data: data.update(change))
    with pytest.raises(TextError, match=message) as error:
        load_recipe(small_corpus.recipe)
    assert error.value.file == str(small_corpus.recipe)


def test_the_recipe_of_the_embedded_model_pins_everything() -> None:
    recipe = load_recipe(RECIPE)
    for source in recipe.sources.values():
        assert source.kind == "deb"
        assert source.archive_sha256
        assert source.language in ("en", "de", "code")
    assert {"train.npy", "heldout.npz", "tokenizer/tokenizer.json"} <= set(recipe.outputs)


@pytest.mark.peer
def test_the_corpus_of_the_embedded_model_is_rebuilt(tmp_path: Path) -> None:
    if not deb_dirs():
        pytest.skip(f"{DEB_DIR} names no folder with the packages of {RECIPE.name}")
    recipe = load_recipe(RECIPE)
    hashes = build_training_corpus(recipe, deb_dirs()[0], tmp_path)["sha256"]
    assert {name: hashes[name] for name in recipe.outputs} == recipe.outputs
