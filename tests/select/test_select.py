"""Selections from hand-written sensitivities: bytes, ties, goals, words."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.sensitivity import Sensitivity
from quantkit.artifacts.store import dumps
from quantkit.errors import SelectionError
from quantkit.select import bounds_of, bytes_from_gb, select
from tests.artifacts.examples import file_id, sensitivity, source_layer

SENSITIVITY_FILE = file_id("sensitivity.json")


def random_sensitivity(seed: int, n_layers: int, n_sources: int) -> Sensitivity:
    rng = np.random.default_rng(seed)
    sources = {}
    for number in range(n_sources):
        layers = []
        for layer in range(n_layers):
            size = rng.integers(1, 40, 2) * 320
            error = rng.exponential(0.05, 2) * 2000 / size
            parts = [(int(s), float(e)) for s, e in zip(size, error, strict=True)]
            layers.append(source_layer(layer, parts[0], parts[1]))
        sources["base" if number == 0 else f"donor{number:02}"] = layers
    return sensitivity(sources)


def run(made: Sensitivity, **goal: object) -> Selection:
    return select(made, SENSITIVITY_FILE, name="t", **goal)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    n_layers=st.integers(1, 6),
    n_sources=st.integers(1, 6),
    unit_mode=st.sampled_from(["layer", "split"]),
    share=st.floats(0, 1.2),
)
def test_target_is_kept_and_bytes_add_up(
    seed: int, n_layers: int, n_sources: int, unit_mode: str, share: float
) -> None:
    made = random_sensitivity(seed, n_layers, n_sources)
    bounds = bounds_of(made, unit_mode)
    floor, ceiling = bounds.floor, bounds.ceiling
    target = floor.file_bytes + int(share * (ceiling.file_bytes - floor.file_bytes))
    found = run(made, unit_mode=unit_mode, target_bytes=target)
    assert found.predicted_file_bytes <= target
    assert floor.file_bytes <= found.predicted_file_bytes <= ceiling.file_bytes
    assert ceiling.error <= found.predicted_error <= floor.error * (1 + 1e-12)
    assert found.optimality_gap == 0
    taken = sum(choice.bytes for choice in found.choices)
    assert found.predicted_file_bytes == made.fixed_bytes + taken
    if share >= 1:
        assert found.predicted_error == ceiling.error
    dumps(found)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), unit_mode=st.sampled_from(["layer", "split"]))
def test_both_goals_meet(seed: int, unit_mode: str) -> None:
    """The smallest file within an error is the best file of its own size, and the other way."""
    made = random_sensitivity(seed, 5, 5)
    bounds = bounds_of(made, unit_mode)
    target = (bounds.floor.file_bytes + bounds.ceiling.file_bytes) // 2
    best = run(made, unit_mode=unit_mode, target_bytes=target)
    small = run(made, unit_mode=unit_mode, max_error=best.predicted_error)
    assert small.predicted_error <= best.predicted_error * (1 + 1e-12)
    assert small.predicted_file_bytes <= best.predicted_file_bytes
    again = run(made, unit_mode=unit_mode, target_bytes=small.predicted_file_bytes)
    assert again.predicted_error == pytest.approx(best.predicted_error, rel=1e-12)


@pytest.mark.parametrize("unit_mode", ["layer", "split"])
def test_error_falls_and_never_rises_with_the_target(unit_mode: str) -> None:
    made = random_sensitivity(3, 8, 6)
    bounds = bounds_of(made, unit_mode)
    targets = np.linspace(bounds.floor.file_bytes, bounds.ceiling.file_bytes, 40).astype(int)
    errors = [
        run(made, unit_mode=unit_mode, target_bytes=int(target)).predicted_error
        for target in targets
    ]
    assert all(later <= earlier for earlier, later in itertools.pairwise(errors))
    assert errors[-1] == bounds.ceiling.error < errors[0] == bounds.floor.error


def test_split_is_never_worse_where_units_add_up() -> None:
    made = random_sensitivity(4, 8, 5)
    bounds = bounds_of(made, "layer")
    target = (2 * bounds.floor.file_bytes + bounds.ceiling.file_bytes) // 3
    layer = run(made, unit_mode="layer", target_bytes=target)
    split = run(made, unit_mode="split", target_bytes=target)
    assert split.predicted_error < layer.predicted_error
    assert {choice.unit for choice in split.choices} == {"gate_up", "down"}
    assert len(split.choices) == 2 * len(layer.choices)


@pytest.mark.parametrize("unit_mode", ["layer", "split"])
def test_order_of_donors_in_the_file_does_not_matter(unit_mode: str) -> None:
    """Donors in pairs with the same bytes and errors, so that nearly everything is a tie."""
    made = random_sensitivity(5, 8, 5)
    twins = tuple(
        dataclasses.replace(source, name=f"{source.name}-twin") for source in made.sources
    )
    made = dataclasses.replace(made, sources=made.sources + twins)
    bounds = bounds_of(made, unit_mode)
    target = (bounds.floor.file_bytes + bounds.ceiling.file_bytes) // 2
    expected = run(made, unit_mode=unit_mode, target_bytes=target)
    assert not any(choice.source.endswith("twin") for choice in expected.choices)
    for seed in range(5):
        donors = list(made.sources[1:])
        random.Random(seed).shuffle(donors)
        shuffled = dataclasses.replace(made, sources=(made.base, *donors))
        assert dumps(run(shuffled, unit_mode=unit_mode, target_bytes=target)) == dumps(expected)


def test_tie_goes_to_the_base() -> None:
    layer = [source_layer(0, (640, 0.125), (320, 0.25))]
    found = run(sensitivity({"zeta": layer, "alpha": layer}), target_bytes=10**9)
    assert [choice.source for choice in found.choices] == ["zeta"]


def test_donor_without_a_layer_is_no_candidate_there() -> None:
    base = [source_layer(n, (640, 0.5), (320, 0.5)) for n in range(2)]
    donor = [source_layer(1, (640, 0.1), (320, 0.1))]
    found = run(sensitivity({"base": base, "donor": donor}), target_bytes=10**9)
    assert [choice.source for choice in found.choices] == ["base", "donor"]


def test_errors_written_in_decimal_meet_their_sum() -> None:
    """0.1 + 0.2 is a little more than 0.3 in binary; a bound of 0.3 still admits it."""
    layers = [source_layer(0, (640, 0.1), (320, 0.0)), source_layer(1, (640, 0.2), (320, 0.0))]
    found = run(sensitivity({"base": layers}), max_error=0.3)
    assert found.predicted_error == pytest.approx(0.3)


def test_target_below_the_floor_names_floor_and_reason() -> None:
    made = random_sensitivity(6, 3, 3)
    floor = bounds_of(made, "layer").floor.file_bytes
    run(made, target_bytes=floor)
    with pytest.raises(SelectionError) as caught:
        run(made, target_bytes=floor - 1)
    text = str(caught.value)
    assert f"value: {floor - 1} bytes" in text
    assert f"rule: the smallest file has {floor} bytes" in text
    assert "rows of 640 values: only blocks of 32, 64 or 128 fit, not of 256" in text
    assert "per_layer_token_embd.weight" in text
    assert caught.value.exit_code == 3


def test_error_below_the_least_is_refused() -> None:
    made = random_sensitivity(6, 3, 3)
    least = bounds_of(made, "layer").ceiling.error
    with pytest.raises(SelectionError, match="the least summed error is"):
        run(made, max_error=least * 0.999)


@pytest.mark.parametrize(
    "goal",
    [
        {},
        {"target_bytes": 10**9, "max_error": 0.1},
        {"max_error": math.nan},
        {"max_error": math.inf},
        {"max_error": -0.1},
        {"target_bytes": -5},
        {"target_bytes": 0},
    ],
)
def test_unusable_goals(goal: dict[str, float]) -> None:
    with pytest.raises(SelectionError):
        run(random_sensitivity(7, 2, 2), **goal)


def test_goals_far_outside_the_range_are_fine() -> None:
    made = random_sensitivity(7, 2, 2)
    assert run(made, target_bytes=10**30).predicted_error == bounds_of(made, "layer").ceiling.error
    floor = bounds_of(made, "layer").floor
    assert run(made, max_error=1e99).predicted_file_bytes == floor.file_bytes


def test_decimal_gb() -> None:
    assert bytes_from_gb(88.87) == 88_870_000_000
    assert bytes_from_gb("0.0000000019") == 1
    for bad in ("0", "-1", "nan", "inf", "1e-10"):
        with pytest.raises(SelectionError):
            bytes_from_gb(bad)


@pytest.mark.parametrize(
    ("row", "qtype", "words"),
    [
        (64, "IQ4_NL", "only blocks of 32 or 64 fit, not of 128 or 256"),
        (64, "IQ4_NL", "smaller types that would fit: Q2_0 (2.25 bits), MXFP4 (4.25 bits)"),
        (160, "MXFP4", "only blocks of 32 fit, not of 64, 128 or 256, and no smaller type"),
        (2560, "IQ1_S", "rows of 2560 values; smaller types that would fit: Q1_0 (1.125 bits)"),
        (3, "F32", "no block type fits"),
        (640, "TYPE_99", "TYPE_99, rows of 640 values"),
    ],
)
def test_floor_reasons_speak_of_row_widths(row: int, qtype: str, words: str) -> None:
    layers = [
        source_layer(n, (640, 0.1), (320, 0.2), types=("Q4_0", qtype), rows=(2560, row))
        for n in (0, 1, 2, 5)
    ]
    reasons = bounds_of(sensitivity({"base": layers}), "split").floor_reasons
    down = next(reason for reason in reasons if reason.startswith("down of"))
    assert down.startswith("down of layers 0-2, 5: 0.001 MB, least from 'base'")
    assert words in down


def test_full_size_is_fast() -> None:
    """48 layers, 16 sources, both units: 96 choices among 16."""
    made = random_sensitivity(8, 48, 16)
    bounds = bounds_of(made, "split")
    target = (bounds.floor.file_bytes + bounds.ceiling.file_bytes) // 2
    start = time.perf_counter()
    run(made, unit_mode="split", target_bytes=target)
    assert time.perf_counter() - start < 5


def test_select_imports_no_torch() -> None:
    code = "import sys, quantkit.select; sys.exit(bool({'torch', 'gguf'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
