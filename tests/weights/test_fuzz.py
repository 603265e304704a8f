"""Any one field damaged in any way: the model opens, or a QuantkitError says why it does not."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quantkit.containers.base import spec_of
from quantkit.containers.gguf import GGUFFile, ValueType, open_gguf, pack_kv
from quantkit.containers.gguf.write import plan_gguf
from quantkit.errors import QuantkitError
from quantkit.quantize import convert_checkpoint
from quantkit.weights import open_model
from quantkit.weights.tokenizer import load_tokenizer, read_vocabulary
from tests.tiny import EMBEDDED, VOCAB_SIZE, save_tokenizer

SEED = 20
MAX_SECONDS = 2.0
DELETED = object()
JSON_VALUES: list[Any] = [
    None, "x", "", [], [1], [None], {}, {"a": 1}, 0, -1, 1, 1.5, True, math.nan, math.inf,
    10**30, 2**31, "\ud800", DELETED,
]  # fmt: skip
GGUF_VALUES: list[tuple[ValueType, Any, ValueType | None] | None] = [
    None,
    (ValueType.STRING, "x", None),
    (ValueType.STRING, "", None),
    (ValueType.STRING, "\udcff", None),
    (ValueType.UINT32, 0, None),
    (ValueType.UINT32, 1, None),
    (ValueType.INT32, -1, None),
    (ValueType.UINT64, 2**64 - 1, None),
    (ValueType.UINT32, 2**31 - 1, None),
    (ValueType.FLOAT32, math.nan, None),
    (ValueType.FLOAT64, math.inf, None),
    (ValueType.BOOL, True, None),
    (ValueType.ARRAY, [], ValueType.INT32),
    (ValueType.ARRAY, [1, 2, 3], ValueType.INT32),
    (ValueType.ARRAY, [-1] * 9, ValueType.INT64),
    (ValueType.ARRAY, [math.nan] * 9, ValueType.FLOAT32),
    (ValueType.ARRAY, ["a", "\udcff"], ValueType.STRING),
]
PER_FIELD = 4
"""Values tried in each run of a field, another draw for each field."""


def some(random_: random.Random, values: list[Any]) -> list[Any]:
    return random_.sample(values, PER_FIELD)


def opens_or_says_why(label: str, step: Callable[[], object]) -> bool:
    """Whether it opened. Anything but a QuantkitError goes through, and so does a slow one."""
    start = time.monotonic()
    try:
        step()
    except QuantkitError:
        opened = False
    else:
        opened = True
    assert time.monotonic() - start < MAX_SECONDS, label
    return opened


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    path = tmp_path_factory.mktemp("embedded") / "model.gguf"
    convert_checkpoint(EMBEDDED, path)
    return open_gguf(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The embedded model, its tensors by reference."""
    for path in EMBEDDED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_every_gguf_key(gguf: GGUFFile, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    specs = [spec_of(entry) for entry in gguf.tensors.values()]
    raws = {key: gguf.metadata.raw(key) for key in gguf.metadata}
    found = {True: 0, False: 0}
    random_ = random.Random(SEED)
    for key in raws:
        for value in some(random_, GGUF_VALUES):
            changed = [] if value is None else [pack_kv(key, value[0], value[1], value[2])]
            pairs = [raw for other, raw in raws.items() if other != key]
            (plan,) = plan_gguf(path, [*pairs, *changed], specs)
            # Headers decide; the data may be a hole in the file.
            path.write_bytes(plan.header)
            os.truncate(path, plan.nbytes)
            label = f"{key}={value}"
            is_tokenizer = key.startswith("tokenizer.")
            step = load_tokenizer if is_tokenizer else open_model
            found[opens_or_says_why(label, lambda step=step: step(path))] += 1
    assert min(found.values()) > 20, found


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a JSON document, of long lists and objects the first two."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[: None if len(path) == 0 else 12]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for number in range(min(2, len(value))):
            yield from places(value[number], (*path, number))


def damaged(document: Any, place: tuple[str | int, ...], value: Any) -> Any:
    """A copy with another value at one place, sharing the rest."""
    if not place:
        return {} if value is DELETED else value
    step, *rest = place
    copy = dict(document) if isinstance(document, dict) else list(document)
    if not rest and value is DELETED:
        del copy[step]
    else:
        copy[step] = damaged(document[step], tuple(rest), value)
    return copy


def test_every_field_of_the_configuration(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.unlink()
    found = {True: 0, False: 0}
    random_ = random.Random(SEED)
    for place in places(config):
        for value in some(random_, JSON_VALUES):
            path.write_text(json.dumps(damaged(config, place, value)))
            label = f"{place}={value}"
            found[opens_or_says_why(label, lambda: open_model(folder))] += 1
    assert min(found.values()) > 20, found


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_every_field_of_the_tokenizer(name: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "qwen4exp")
    path = tmp_path / name
    document = json.loads(path.read_text())
    random_ = random.Random(SEED)
    found = {True: 0, False: 0}
    for place in places(document):
        for value in some(random_, JSON_VALUES):
            path.write_text(json.dumps(damaged(document, place, value)))
            label = f"{place}={value}"
            for read in (load_tokenizer, lambda folder: read_vocabulary(folder, VOCAB_SIZE)):
                found[opens_or_says_why(label, lambda read=read: read(tmp_path))] += 1
    assert min(found.values()) > 5, found
