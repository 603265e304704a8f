"""Words of the command line that mean nothing are usage errors, whatever files there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import CALIB, EXPERTS, Files, quantkit

RECIPE = CALIB.parent / "recipes" / "tiny-hybrid.yaml"


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--bar", "foo=1"], "--bar"),
        (["--bar", "min_tokens"], "--bar"),
        (["--bar", "min_tokens=few"], "--bar"),
        (["--text", f"capture={CALIB / 'capture.txt'}"], "unknown role"),
        (["--meter", "foo"], "unknown meter"),
        (["--device", "meta"], "unknown device"),
    ],
)
def test_gate(words: list[str], word: str, files: Files, tmp_path: Path) -> None:
    models = ["--baseline", files.base, "--reference", files.bf16, "--out", tmp_path / "g.json"]
    result = quantkit("gate", files.small, *models, *files.texts, *words, "--dry-run")
    assert (result.code, result.stdout) == (2, ""), result.stderr
    assert word in result.stderr


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ("nonsense", "pattern=TYPE"),
        ("(=Q8_0", "regular expression"),
        (".*=Q9_Z", "unknown"),
        (f"{EXPERTS}=TYPE_153", "--rule"),
    ],
)
def test_rules(rule: str, word: str, files: Files, tmp_path: Path) -> None:
    result = quantkit("quantize", files.bf16, tmp_path / "o.gguf", "--rule", rule)
    assert result.code == 2, result.stderr
    assert word in result.stderr
    assert list(tmp_path.iterdir()) == []


GOALS = [
    *(("--target-gb", text) for text in ("much", "nan", "-1", "0", "1_0", "１", "1e5000", " 1 ")),
    *(("--target-gb", text) for text in ("1e99999999", "1e400", "1e-400", "9" * 50)),
    *(("--max-error", text) for text in ("-1", "nan", "inf", "1e308", "much")),
]


@pytest.mark.parametrize(("option", "text"), GOALS)
def test_goals(option: str, text: str, files: Files, tmp_path: Path) -> None:
    result = quantkit("select", files.sensitivity, option, text, "--out", tmp_path / "s.json")
    assert result.code == 2, result.stderr
    assert option in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", ["", "0", "1_0M", "٣M", "3 M", "1T", "9" * 30])
def test_sizes_of_shards(size: str, files: Files, tmp_path: Path) -> None:
    selection = tmp_path / "s.json"
    quantkit("select", files.sensitivity, "--target-gb", 1, "--out", selection)
    splice = ["splice", selection, tmp_path / "h.gguf", *files.sources, "--split-max-size", size]
    result = quantkit(*splice)
    assert result.code == 2, result.stderr
    assert "not a size" in result.stderr


@pytest.mark.parametrize("words", [["--meter", "foo"], ["--device", "cuda:abc"]], ids=str)
@pytest.mark.parametrize("extra", [[], ["--dry-run"]], ids=str)
def test_run(words: list[str], extra: list[str], tmp_path: Path) -> None:
    result = quantkit("run", RECIPE, *words, *extra, cwd=tmp_path)
    assert result.code == 2, result.stderr
    assert words[1] in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_of_a_recipe_has_the_meter_of_the_run(tmp_path: Path) -> None:
    words = ["--meter", "llama.cpp", "--dry-run"]
    result = quantkit("run", RECIPE, *words, cwd=tmp_path, QUANTKIT_LLAMA_PERPLEXITY="none")
    assert result.code == 3
    assert "llama-perplexity was not found" in result.stderr
