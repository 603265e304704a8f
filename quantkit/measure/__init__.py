"""`measure`: what swapping each layer's experts for a donor's costs."""

from quantkit.measure.run import measure

__all__ = ["measure"]
