"""The multiple-choice knapsack, solved exactly in integers.

One option is picked from every group so that the summed cost is least while the summed weight
stays within a limit. Among picks of equal cost the lighter one wins, then the one whose option
numbers come first, group by group: the result depends on nothing but the input.

Method: partial picks are extended group by group and kept only if no other partial pick is both
as cheap and as light (Nemhauser & Ullmann, 1969) and if the linear relaxation of what remains
(Sinha & Zoltners, 1979) lets them end within a small distance of the relaxation's optimum. The
distance grows until a solution appears; whatever was cut off costs more than that solution, so
the solution is optimal. All costs and weights are Python or 64-bit integers; the bound is in
floating point, with a slack far above its rounding error, and only decides what to look at.

Why not a general solver: HiGHS works to floating-point tolerances (1e-6 on feasibility and on the
gap), so its answer would need this proof anyway. The tests compare with it and with brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Option = tuple[int, int]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_TOTAL = 1 << 52  # sums stay exact as floating-point numbers
MAX_STATES = 200_000  # partial picks kept: a memory limit of about 150 MB with 16 options
BOUND_SLACK = 1e-12  # of the largest possible cost
DISTANCES = (1 / 256, 1 / 16, 1.0)  # of the greedy solution's distance from the relaxation


@dataclass(frozen=True)
class Solution:
    """Option number per group; `gap` is 0 when proved optimal, else the most it can be off."""

    picks: tuple[int, ...]
    cost: int
    weight: int
    gap: int


@dataclass(frozen=True)
class _Group:
    """Undominated options, lighter to heavier, so costs fall; `origin` is their option number."""

    cost: Ints
    weight: Ints
    origin: Ints


def minimise(groups: Sequence[Sequence[Option]], limit: int) -> Solution | None:
    """Least cost with weight at most `limit`; None if even the lightest picks weigh more.

    Options are (cost, weight), integers of 0 or more whose sums stay below 2**52.
    """
    for axis in (0, 1):
        assert sum(max(option[axis] for option in group) for group in groups) <= MAX_TOTAL
    made = [_undominated(group) for group in groups]
    if sum(int(group.weight[0]) for group in made) > limit:
        return None
    limit = min(limit, sum(int(group.weight[-1]) for group in made))
    relaxation = _Relaxation(made)
    bound = relaxation.bound(limit)
    greedy = relaxation.greedy(limit)
    greedy_cost = sum(int(g.cost[pick]) for g, pick in zip(made, greedy, strict=True))
    best, thinned = greedy, True
    for share in DISTANCES:
        ceiling = bound + (greedy_cost - bound) * share + relaxation.slack
        found, thinned = _search(made, relaxation, limit, ceiling)
        if found is not None:
            best = found
            break
    cost = sum(int(g.cost[pick]) for g, pick in zip(made, best, strict=True))
    return Solution(
        picks=tuple(int(g.origin[pick]) for g, pick in zip(made, best, strict=True)),
        cost=cost,
        weight=sum(int(g.weight[pick]) for g, pick in zip(made, best, strict=True)),
        gap=max(0, cost - int(bound)) if thinned else 0,
    )


def _undominated(options: Sequence[Option]) -> _Group:
    """Without the options that another one beats in cost or weight and equals in the other."""
    kept: list[int] = []
    for index in sorted(range(len(options)), key=lambda i: (options[i][1], options[i][0], i)):
        if not kept or options[index][0] < options[kept[-1]][0]:
            kept.append(index)
    cost, weight = (np.array([options[i][axis] for i in kept], np.int64) for axis in (0, 1))
    return _Group(cost, weight, np.array(kept, np.int64))


@dataclass(frozen=True)
class _Step:
    """From one corner of a group's convex hull to the next heavier one."""

    slope: float
    group: int
    pick: int
    weight: int
    cost: int


class _Relaxation:
    """The linear relaxation of any tail of the groups, as a piecewise linear function."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.groups = groups
        steps = [step for number, group in enumerate(groups) for step in _hull(number, group)]
        self.steps = sorted(steps, key=lambda step: (step.slope, step.group, step.pick))
        self._group = np.array([step.group for step in self.steps], np.int64)
        self._weight = np.array([step.weight for step in self.steps], np.float64)
        self._cost = np.array([step.cost for step in self.steps], np.float64)
        self.least_weight = _tail_sums([int(group.weight[0]) for group in groups])
        self._most_cost = _tail_sums([int(group.cost[0]) for group in groups])
        self.slack = BOUND_SLACK * self._most_cost[0] + 1.0

    def tail(self, start: int) -> tuple[Floats, Floats]:
        """Corners (weight, least cost) of the relaxation over the groups from `start` on."""
        chosen = self._group >= start
        weight = np.concatenate(([0.0], np.cumsum(self._weight[chosen])))
        cost = np.concatenate(([0.0], np.cumsum(self._cost[chosen])))
        return weight + self.least_weight[start], cost + self._most_cost[start]

    def bound(self, limit: int) -> float:
        """No pick within `limit` costs less than this."""
        return float(np.interp(limit, *self.tail(0)))

    def greedy(self, limit: int) -> list[int]:
        """The relaxation's picks, rounded down at the one step that does not fit whole."""
        picks = [0] * len(self.groups)
        room = limit - self.least_weight[0]
        for step in self.steps:
            if step.weight > room:
                break
            room -= step.weight
            picks[step.group] = step.pick
        return picks


def _hull(number: int, group: _Group) -> list[_Step]:
    """Steps along the lower convex hull of a group, steepest first; exact in Python integers."""
    cost, weight = group.cost.tolist(), group.weight.tolist()
    corners = [0]
    for new in range(1, len(cost)):
        while len(corners) > 1:
            low, mid = corners[-2], corners[-1]
            before = (cost[mid] - cost[low]) * (weight[new] - weight[mid])
            after = (cost[new] - cost[mid]) * (weight[mid] - weight[low])
            if before < after:
                break
            corners.pop()
        corners.append(new)
    steps = []
    for low, high in pairwise(corners):
        rise, run = cost[high] - cost[low], weight[high] - weight[low]
        steps.append(_Step(rise / run, number, high, run, rise))
    return steps


def _tail_sums(values: Sequence[int]) -> list[int]:
    """sum(values[k:]) for every k, and 0 behind the last."""
    sums = [0]
    for value in reversed(values):
        sums.append(sums[-1] + value)
    return sums[::-1]


def _search(
    groups: Sequence[_Group], relaxation: _Relaxation, limit: int, ceiling: float
) -> tuple[list[int] | None, bool]:
    """The best picks that cost at most `ceiling`, or None; and whether states had to be dropped."""
    cost, weight, rank = (np.zeros(1, np.int64) for _ in range(3))
    history: list[tuple[Ints, Ints]] = []
    thinned = False
    for number, group in enumerate(groups):
        size = len(group.cost)
        new_cost = (cost[:, None] + group.cost).ravel()
        new_weight = (weight[:, None] + group.weight).ravel()
        new_rank = (rank[:, None] * (int(group.origin.max()) + 1) + group.origin).ravel()
        room = limit - new_weight
        bound = new_cost + np.interp(room, *relaxation.tail(number + 1))
        alive = np.flatnonzero((room >= relaxation.least_weight[number + 1]) & (bound <= ceiling))
        if len(alive) > MAX_STATES:
            thinned = True
            alive = alive[np.argsort(bound[alive], kind="stable")[:MAX_STATES]]
        order = alive[np.lexsort((new_rank[alive], new_cost[alive], new_weight[alive]))]
        order = order[_falling(new_cost[order])]
        if not len(order):
            return None, thinned
        cost, weight = new_cost[order], new_weight[order]
        rank = np.argsort(np.argsort(new_rank[order]))
        history.append((order // size, order % size))
    picks, state = [], len(cost) - 1
    for parent, pick in reversed(history):
        picks.append(int(pick[state]))
        state = int(parent[state])
    return picks[::-1], thinned


def _falling(values: Ints) -> NDArray[np.bool_]:
    """Where a value is below all values before it."""
    keep = np.ones(len(values), np.bool_)
    keep[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return keep
