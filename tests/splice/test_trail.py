"""A reader right behind a writer: nothing is missed, nobody runs away, errors and ends arrive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.splice import trail as trail_module
from quantkit.splice.trail import Trail

SECONDS = 10


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.integers(0, 300), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 3000), max_size=5),
    batch=st.integers(1, 200),
    window=st.integers(1, 500),
)
def test_the_reader_gets_every_byte_once(
    steps: list[int], cuts: list[int], batch: int, window: int
) -> None:
    total = sum(steps)
    edges = [0, *sorted(min(cut, total) for cut in cuts), total]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trail_module, "BATCH_BYTES", batch)
        patch.setattr(trail_module, "WINDOW_BYTES", window)
        trail = Trail()

        spans: list[tuple[int, int]] = []

        def read() -> None:
            for start, end in pairwise(edges):
                spans.extend(trail.spans(start, end))

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(trail.run, read)
            written = 0
            for step in steps:
                written += step
                trail.advance(written)
            reading.result(SECONDS)
        trail.raise_failure()
        assert [start for start, _ in spans] == [0, *(end for _, end in spans)][:-1]
        assert all(0 < end - start <= batch for start, end in spans)
        assert sum(end - start for start, end in spans) == total


def test_the_writer_waits_for_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_module, "WINDOW_BYTES", 100)
    trail = Trail()
    spans = trail.spans(0, 500)
    trail.advance(100)
    assert next(spans) == (0, 100)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(trail.advance, 150)
        assert trail.wait_for(150) == 150
        assert not writing.done()
        assert next(spans) == (100, 150)
        writing.result(SECONDS)


def test_a_failing_reader_stops_a_waiting_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_module, "WINDOW_BYTES", 100)
    trail = Trail()
    started = Event()

    def reader() -> None:
        next(trail.spans(0, 500))
        started.wait(SECONDS)
        raise ValueError("unreadable")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trail.run, reader)
        trail.advance(100)
        started.set()
        with pytest.raises(ValueError, match="unreadable"):
            trail.advance(300)
    with pytest.raises(ValueError, match="unreadable"):
        trail.raise_failure()


def test_closing_sends_waiting_readers_home() -> None:
    trail = Trail()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(trail.run, lambda: list(trail.spans(0, 500)).clear())
        trail.close()
        done.result(SECONDS)
    trail.raise_failure()
