"""What a measurement ran on: evidence beside a figure, never part of its identity."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantkit.artifacts.schema import Positive

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """Constant for a machine and its installed libraries: no times, no load, no host name."""

    system: str
    processor: str
    cores: Positive
    python: str
    devices: tuple[str, ...]
    libraries: dict[str, str]


def describe_machine(
    devices: Sequence[str] = (), libraries: Mapping[str, str] | None = None
) -> Machine:
    """This machine; the caller adds its compute devices and library versions."""
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        devices=tuple(devices),
        libraries=dict(libraries or {}),
    )


def _processor() -> str:
    if CPUINFO.is_file():
        for line in CPUINFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"
