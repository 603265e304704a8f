"""quantkit: build smaller MoE models from donor quantizations and prove them good."""

__version__ = "0.1.0"
