"""Files that the cache keeps, each with its SHA-256 beside it in the form of `sha256sum`.

Figures are judged by what stands in the cache, and a file that was cut off or overwritten with
zeros can look like a good one. A file that is not what was written is dropped and made again.
"""

from __future__ import annotations

from pathlib import Path

from quantkit.errors import QuantkitError
from quantkit.files import read_regular, write_text_atomic
from quantkit.progress import log
from quantkit.weights.identity import file_id

DIGEST_SUFFIX = ".sha256"


def seal(path: Path) -> None:
    """Write the digest of a file that is complete."""
    write_text_atomic(_digest_path(path), _digest_line(path))


def is_whole(path: Path) -> bool:
    """Whether the file is there and as it was when it was sealed; a damaged one is removed."""
    if not path.is_file():
        return False
    try:
        if read_regular(_digest_path(path)) == _digest_line(path).encode():
            return True
        problem = "is not what was written"
    except (OSError, QuantkitError):
        problem = "has no digest beside it"
    log(f"{path} {problem}; it is computed again")
    path.unlink()
    return False


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + DIGEST_SUFFIX)


def _digest_line(path: Path) -> str:
    return f"{file_id(path).sha256}  {path.name}\n"
