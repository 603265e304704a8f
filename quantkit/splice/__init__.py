"""Splice: a hybrid model by byte copy, expert units from donors and all else from the base."""

from quantkit.splice.plan import PlannedTensor, SplicePlan, UnitChoice, plan_splice
from quantkit.splice.selected import plan_from_selection
from quantkit.splice.write import SpliceResult, output_paths, predicted_bytes, write_splice

__all__ = [
    "PlannedTensor",
    "SplicePlan",
    "SpliceResult",
    "UnitChoice",
    "output_paths",
    "plan_from_selection",
    "plan_splice",
    "predicted_bytes",
    "write_splice",
]
