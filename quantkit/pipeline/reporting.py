"""The last step: the report, from what the others left on disk."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cached_property

from quantkit.artifacts.gate import PASS
from quantkit.files import write_text_atomic
from quantkit.pipeline.build import Builder
from quantkit.pipeline.facts import gather
from quantkit.pipeline.steps import FileHashes, Step
from quantkit.report.facts import RunFacts
from quantkit.report.plot import plot_size_kld
from quantkit.report.run_report import render_report


@dataclass(frozen=True)
class Reporter:
    """Makes the report of a run once all its other steps are done."""

    builder: Builder
    hashes: FileHashes

    def all_steps(self) -> list[Step]:
        """Every step of the run, the report last."""
        steps = self.builder.steps()
        space, path = self.builder.space, self.builder.recipe.path
        command = shlex.join(["quantkit", "run", str(path)])
        report = Step(
            kind="report",
            subject="",
            parameters={
                "command": command,
                "commands": [list(line) for line in self.builder.command_lines()],
            },
            inputs=(path, *(output for step in steps for output in step.outputs)),
            outputs=(space.report, space.plot),
            work=self._write,
        )
        return [*steps, report]

    @cached_property
    def facts(self) -> RunFacts:
        """What the artifacts say; read on first use, when the steps before are done."""
        return gather(self.builder, self.hashes)

    def _write(self) -> None:
        space, facts = self.builder.space, self.facts
        plot_size_kld(facts.models, PASS, f"{facts.name}: file size and KLD", space.plot)
        write_text_atomic(space.report, render_report(facts, space.plot.name))
