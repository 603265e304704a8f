"""The solver against brute force, against HiGHS, and on inputs made to be hard for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from quantkit.select import knapsack
from quantkit.select.knapsack import Option, minimise

Groups = list[list[Option]]


def brute_force(groups: Groups, limit: int) -> tuple[int, int, tuple[int, ...]] | None:
    """(cost, weight, picks) that is least in this order, by trying everything."""
    found = []
    for picks in itertools.product(*(range(len(group)) for group in groups)):
        chosen = [group[pick] for group, pick in zip(groups, picks, strict=True)]
        weight = sum(option[1] for option in chosen)
        if weight <= limit:
            found.append((sum(option[0] for option in chosen), weight, picks))
    return min(found, default=None)


def small_groups(largest: int) -> st.SearchStrategy[Groups]:
    option = st.tuples(st.integers(0, largest), st.integers(0, largest))
    return st.lists(st.lists(option, min_size=1, max_size=5), min_size=1, max_size=6)


@settings(deadline=None, max_examples=300)
@given(groups=small_groups(6) | small_groups(10**9), share=st.floats(0, 1.1))
def test_equals_brute_force_with_its_ties(groups: Groups, share: float) -> None:
    limit = int(share * sum(max(option[1] for option in group) for group in groups))
    expected = brute_force(groups, limit)
    found = minimise(groups, limit)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (found.cost, found.weight, found.picks) == expected
    assert found.gap == 0


@settings(deadline=None, max_examples=100)
@given(groups=small_groups(1000), limits=st.tuples(st.integers(0, 6000), st.integers(0, 6000)))
def test_more_room_never_costs_more(groups: Groups, limits: tuple[int, int]) -> None:
    low, high = (minimise(groups, limit) for limit in sorted(limits))
    if low is not None:
        assert high is not None
        assert high.cost <= low.cost
        assert low.weight <= min(limits)


def random_groups(rng: np.random.Generator, n_groups: int, n_options: int) -> Groups:
    """Costs that fall by about four for each bit that the weight gains, as types do."""
    bits = rng.choice([1.125, 2.25, 2.625, 3.4375, 4.25, 4.5, 6.5625, 8.5], (n_groups, n_options))
    scale = np.exp(rng.normal(0, 0.5, (n_groups, 1)))
    cost = scale * 4.0 ** (8 - bits) * np.exp(rng.normal(0, 0.15, bits.shape))
    return [
        list(zip((row * 1e6).astype(int).tolist(), weight.astype(int).tolist(), strict=True))
        for row, weight in zip(cost, bits * 102400, strict=True)
    ]


def highs(groups: Groups, limit: int) -> Option:
    """(cost, weight) of the solver's picks; its tolerances let the weight pass the limit a bit."""
    options = [(number, option) for number, group in enumerate(groups) for option in group]
    cost, weight = (np.array([option[axis] for _, option in options]) for axis in (0, 1))
    rows = [number for number, _ in options]
    one_each = csr_matrix((np.ones(len(rows)), (rows, range(len(rows)))))
    answer = milp(
        cost / cost.max(),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(csr_matrix(weight / limit), -np.inf, 1),
        ],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0},
    )
    taken = np.round(answer.x).astype(bool)
    assert taken.sum() == len(groups)
    return int(cost[taken].sum()), int(weight[taken].sum())


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_highs_at_full_size(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, 48, 16)
    heaviest = sum(max(option[1] for option in group) for group in groups)
    limit = int(heaviest * rng.uniform(0.3, 0.8))
    found = minimise(groups, limit)
    assert found is not None
    assert found.gap == 0
    # HiGHS may pass the limit by its tolerance of 1e-6, and stop 1e-6 short of its scaled
    # optimum: within the weight that it took it is never better, and hardly worse.
    cost, weight = highs(groups, limit)
    assert weight <= limit * (1 + 1e-5)
    ours = minimise(groups, max(limit, weight))
    assert ours is not None
    assert ours.cost <= cost
    assert cost - found.cost <= 2e-6 * max(option[0] for group in groups for option in group)


def test_states_are_thinned_rather_than_exhausting_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost falling linearly in weight makes every pick optimal for the relaxation."""
    monkeypatch.setattr(knapsack, "MAX_STATES", 50)
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 10**6, (24, 8)).tolist()
    groups = [[(10**6 - weight, weight) for weight in row] for row in weights]
    limit = 10_000_019
    found = minimise(groups, limit)
    assert found is not None
    assert found.weight <= limit
    assert found.cost == 24 * 10**6 - found.weight
    assert 0 < found.gap == found.cost - (24 * 10**6 - limit)


def test_zero_costs_take_the_lightest_then_the_first() -> None:
    groups = [[(0, 3), (0, 2), (0, 2)], [(0, 0), (0, 0)]]
    found = minimise(groups, 10**18)
    assert found is not None
    assert found.picks == (1, 0)
    assert found.weight == 2
