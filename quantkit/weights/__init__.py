"""A model's weights by role, whatever file they are in."""

from quantkit.weights.handle import TensorHandle
from quantkit.weights.model import LayerView, ModelWeights, open_model

__all__ = ["LayerView", "ModelWeights", "TensorHandle", "open_model"]
