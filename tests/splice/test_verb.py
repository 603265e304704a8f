"""The verb in this process: what it prints of what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3
from typer.testing import CliRunner

from quantkit.artifacts.selection import Selection
from quantkit.artifacts.store import save
from quantkit.cli.main import build_app
from quantkit.containers.gguf import GGUFFile

from .conftest import flip, leave_nothing


@pytest.fixture
def arguments(
    hashed: Selection, base: GGUFFile, donors: dict[str, GGUFFile], tmp_path: Path, out: Path
) -> list[str]:
    save(hashed, tmp_path / "s.json")
    files = {"q8": base, **donors}
    sources = [f"--source={name}={model.path}" for name, model in files.items()]
    return ["splice", str(tmp_path / "s.json"), str(out), *sources]


@pytest.mark.parametrize("limit", [[], ["--split-max-size", "40K"]])
def test_what_was_written_is_reported_with_its_hash(
    arguments: list[str], out: Path, limit: list[str]
) -> None:
    result = CliRunner().invoke(build_app(["splice"]), [*arguments, *limit, "--json"])
    assert result.exit_code == 0, result.stderr
    written = json.loads(result.stdout)["written"]
    assert {Path(file["path"]) for file in written} == set(out.parent.iterdir())
    for file in written:
        data = Path(file["path"]).read_bytes()
        assert (file["bytes"], file["blake3"]) == (len(data), blake3(data).hexdigest())
    again = CliRunner().invoke(build_app(["splice"]), [*arguments, *limit])
    assert again.stdout.splitlines() == [
        f"wrote {file['path']}  {file['bytes']:,} bytes  blake3 {file['blake3']}"
        for file in written
    ]


def test_a_changed_donor_is_refused_by_name(
    arguments: list[str], donors: dict[str, GGUFFile], out: Path
) -> None:
    entry = donors["iq4"].tensors["blk.0.ffn_up_exps.weight"]
    flip(entry.path, entry.offset + 7)
    result = CliRunner().invoke(build_app(["splice"]), arguments)
    assert result.exit_code == 3
    for part in (str(entry.path), entry.name, "value: blake3", "rule: blake3", "hint: name the"):
        assert part in result.stderr
    leave_nothing(out.parent)
