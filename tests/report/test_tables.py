"""Tables and figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.report.tables import (
    markdown_table,
    size_text,
    size_unit,
    text_table,
    with_error,
)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.011274, 0.000301, "0.01127 ± 0.00030"),
        (0.22644, 0.00357, "0.2264 ± 0.0036"),
        (0.00277, 0.0000681, "0.00277 ± 0.00007"),
        (12.3456, 3.0, "12.3 ± 3.0"),
        (1234.5, 99.0, "1234 ± 99"),
        (0.5, None, "0.5"),
        (0.123456, 0.0, "0.1235"),
    ],
)
def test_figures_have_as_many_digits_as_their_error(
    value: float, error: float | None, text: str
) -> None:
    assert with_error(value, error) == text


@given(
    st.floats(1e-5, 1e3, allow_subnormal=False),
    st.floats(1e-4, 1e2, allow_subnormal=False),
)
def test_rounding_never_moves_a_figure_by_more_than_a_twentieth_of_its_error(
    value: float, error: float
) -> None:
    shown, shown_error = (float(part) for part in with_error(value, error).split(" ± "))
    assert abs(shown - value) <= error / 19
    assert abs(shown_error - error) <= error / 19


def test_sizes_are_in_megabytes_only_where_all_are_small() -> None:
    assert size_unit([999_999_999, 5]) == ("MB", 10**6)
    assert size_unit([10**9, 5]) == ("GB", 10**9)
    assert size_text(88_870_123_456, 10**9) == "88.870"


def test_columns_are_in_line() -> None:
    assert text_table("lr", ["a", "b"], [["long", "1"], ["x", "100"]]).splitlines() == [
        "a       b",
        "long    1",
        "x     100",
    ]


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    table = markdown_table("lr", ["a", "b"], [["x|y", "1"]])
    assert table.splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]
