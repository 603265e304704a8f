"""What the verbs share: option types, output, and how errors end the process."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from quantkit.containers.hashing import file_bytes, sha256_file
from quantkit.containers.inputs import input_files
from quantkit.containers.writing import refuse_inputs
from quantkit.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, QuantkitError, UsageError
from quantkit.progress import log

R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and the bytes; stop.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Context = Annotated[int, typer.Option(min=16, help="Tokens of a chunk.")]

SIZE = re.compile(r"([0-9]{1,15})([KMG]?)", re.IGNORECASE)
SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def guarded(verb: Callable[..., R]) -> Callable[..., R]:
    """Print a user's error as text and exit with its code; the same for Ctrl-C."""

    @functools.wraps(verb)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        try:
            return verb(*args, **kwargs)
        except QuantkitError as error:
            log(f"error: {error.render()}")
            raise typer.Exit(error.exit_code) from None
        except OSError as error:
            log(os_error_text(error))
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except UnicodeEncodeError as error:
            log(f"error: a name that is no UTF-8\n  value: {ascii(error.object)[:200]}")
            raise typer.Exit(EXIT_BAD_INPUT) from None
        except KeyboardInterrupt:
            log("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return wrapper


def os_error_text(error: OSError) -> str:
    """What the system refused, with the file and what to look at."""
    return (
        f"error: {error.strerror or error}\n  file: {error.filename or 'not known'}\n\n"
        "hint: check that the file can be used, and the space and permissions around it"
    )


@contextmanager
def as_usage(option: str) -> Iterator[None]:
    """What is wrong with the text of an option is an error of usage."""
    try:
        yield
    except QuantkitError as error:
        raise UsageError(
            f"{option}: {error.what}", value=error.value, rule=error.rule, hint=error.hint
        ) from error


def emit(as_json: bool, data: Mapping[str, Any], text: str) -> None:
    """Print `data` as JSON or `text`, on stdout.

    The JSON is ASCII, so it is valid whatever stdout's encoding; what is not a finite number is
    null.
    """
    print(json.dumps(_finite(data), indent=2, allow_nan=False) if as_json else text, flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def written(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Path, size and hash of files that a verb wrote."""
    return [
        {"path": str(path), "bytes": file_bytes(path), "sha256": sha256_file(path)}
        for path in paths
    ]


def written_text(files: Sequence[Mapping[str, Any]]) -> str:
    """The same for people."""
    return "\n".join(
        f"wrote {file['path']}  {file['bytes']:,} bytes  sha256 {file['sha256']}" for file in files
    )


def emit_written(as_json: bool, paths: Iterable[Path], text: str = "", **more: Any) -> None:
    """Print what a verb wrote, behind `text`; `more` goes into the JSON."""
    files = written(paths)
    lines = [text, written_text(files)] if text else [written_text(files)]
    emit(as_json, {**more, "written": files}, "\n".join(lines))


def named_paths(pairs: Sequence[str], option: str) -> dict[str, Path]:
    """`name=path` arguments in order; UsageError for another form or a name given twice."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator or not name or not path or name in found:
            raise UsageError(
                f"{option} does not have the form it needs",
                value=pair,
                rule="NAME=PATH, each name once",
            )
        found[name] = Path(path)
    return found


def parse_size(text: str) -> int:
    """Bytes of `800M`, `5G` or a plain number (K, M, G are powers of 1000)."""
    found = SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise UsageError(
            "not a size",
            value=repr(text),
            rule="a whole number, with K, M or G for powers of 1000",
        )
    return int(found[1]) * SIZE_UNITS[found[2].upper()]


def command_line() -> list[str]:
    """The command as recorded in artifacts: the program's name without its folder."""
    return ["quantkit", *sys.argv[1:]]


def require_outputs(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """QuantkitError unless every output can be written where it is named.

    Its folder exists, it is no folder itself, and no file that any of the `inputs` stands for
    (shards, the files of a checkpoint). For every verb, before it does anything.
    """
    places = list(outputs)
    for path in places:
        if not path.absolute().parent.is_dir():
            raise QuantkitError(
                "the output's folder does not exist", file=path, hint="make the folder first"
            )
        if path.is_dir():
            raise QuantkitError(
                "the output is a folder", file=path, hint="name a file, for example one inside it"
            )
    refuse_inputs(places, (file for path in inputs for file in input_files(path)))
