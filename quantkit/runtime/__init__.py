"""Ways to run a model."""

from quantkit.runtime.sweep import LogitsSink, pick_device, sweep

__all__ = ["LogitsSink", "pick_device", "sweep"]
