"""The machine that figures were made on, with the devices that torch sees."""

from __future__ import annotations

import torch

from quantkit.artifacts.machine import Machine, describe_machine


def this_machine() -> Machine:
    """Processor, GPUs and torch's version."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return describe_machine(gpus, {"torch": str(torch.__version__)})
