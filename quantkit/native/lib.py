"""Finding and loading `libquantkit_cpu`: once, and with a diagnosis when it does not work."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from quantkit.native import abi

SWITCH = "QUANTKIT_NATIVE"  # "0" in the environment: do without the library
THREADS = "QUANTKIT_THREADS"  # how many threads its calls use; default: every processor
FOLDER = Path(__file__).parent
FILE_NAMES = {"darwin": "libquantkit_cpu.dylib", "win32": "quantkit_cpu.dll"}
BUILD_HINT = (
    "build it with `pip install -e .`, or `cmake -S quantkit/native/csrc -B build -G Ninja && "
    "ninja -C build`"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """The library, or why there is none; `path` is where it was looked for."""

    path: Path
    library: ctypes.CDLL | None
    diagnosis: str

    @property
    def is_disabled(self) -> bool:
        """Whether the user asked to do without."""
        return os.environ.get(SWITCH) == "0"


def library_path() -> Path:
    """Where the library belongs on this platform."""
    return FOLDER / FILE_NAMES.get(sys.platform, "libquantkit_cpu.so")


@functools.cache
def load() -> Loaded:
    """The library, tried once a process; says once, in the log, when there is none."""
    path = library_path()
    if os.environ.get(SWITCH) == "0":
        return Loaded(path, None, f"disabled by {SWITCH}=0")
    loaded = _try(path)
    if loaded.library is None:
        _log.warning("the native library is not used, codecs are slower: %s", loaded.diagnosis)
    return loaded


def cpu() -> ctypes.CDLL | None:
    """The library, or None."""
    return load().library


def thread_count() -> int:
    """Threads of a call: QUANTKIT_THREADS if it is a positive number, else every processor.

    That is every one that this process may run on, where the system says so.
    """
    wanted = os.environ.get(THREADS, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _try(path: Path) -> Loaded:
    if not path.is_file():
        return Loaded(path, None, f"{path} does not exist; {BUILD_HINT}")
    try:
        library = ctypes.CDLL(str(path))
        abi.declare(library)
    except (OSError, AttributeError) as error:
        return Loaded(path, None, f"{path} does not load: {error}; {BUILD_HINT}")
    found = int(library.qk_abi_version())
    if found != abi.VERSION:
        stale = f"{path} has ABI version {found}, this package needs {abi.VERSION}; {BUILD_HINT}"
        return Loaded(path, None, stale)
    return Loaded(path, library, f"{path}, {library.qk_cpu_variant().decode()}")
