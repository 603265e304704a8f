"""The errors a user can cause, and the exit code each one ends with.

An error says what is wrong, where (file and tensor), the offending value, the rule it breaks and
a hint, so that the reader can act without a traceback. Assertions are for our own invariants;
everything that a bad input can trigger raises one of these.
"""

from __future__ import annotations

from pathlib import Path

EXIT_PASS = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_BAD_INPUT = 3
EXIT_INCONCLUSIVE = 4
EXIT_INTERRUPTED = 130


class QuantkitError(Exception):
    """A problem with something the user gave us; ends the process with `exit_code`."""

    exit_code = EXIT_BAD_INPUT

    def __init__(
        self,
        what: str,
        *,
        file: str | Path | None = None,
        tensor: str | None = None,
        value: object = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.file = None if file is None else str(file)
        self.tensor = tensor
        self.value = value
        self.rule = rule
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """The message as printed: one fact a line, the hint last after a blank line."""
        lines = [self.what]
        facts = (("file", self.file), ("tensor", self.tensor), ("value", self.value))
        lines += [f"  {name}: {fact}" for name, fact in facts if fact is not None]
        if self.rule:
            lines.append(f"  rule: {self.rule}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


class UsageError(QuantkitError):
    """Arguments that do not have the form a verb needs; ends with the exit code of usage."""

    exit_code = EXIT_USAGE


class ContainerError(QuantkitError):
    """A file that is not what its format promises (truncated, overlapping, missing shard)."""


class FormatError(QuantkitError):
    """Values that a quantization type cannot hold or blocks that it cannot have written."""


class ModelError(QuantkitError):
    """A model that we do not know, or whose tensors do not fit its own configuration."""


class DonorError(QuantkitError):
    """A donor that is not a quantization of the base model (other model, permuted experts)."""


class SelectionError(QuantkitError):
    """A size or error bound that the given sources cannot meet."""


class ArtifactError(QuantkitError):
    """A file between stages with another schema, or that belongs to other inputs."""


class TextError(QuantkitError):
    """A text that is too short, does not match its manifest, or has another vocabulary."""


class RecipeError(QuantkitError):
    """A recipe that does not follow the schema."""


class PeerError(QuantkitError):
    """A peer program that is missing, or whose output is not what it prints when it succeeds."""
