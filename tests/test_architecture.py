"""Rules of the code base that no other tool checks: layers, sizes, what a library must not do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "quantkit"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"

SOURCES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), relative(path))


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """(place, node) of every node of these kinds in the package."""
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                yield f"{relative(path)}:{getattr(node, 'lineno', 0)}", node


def test_package_is_found() -> None:
    assert len(SOURCES) > 100


def test_imports_follow_the_layers() -> None:
    pytest.importorskip("importlinter")
    done = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_files_are_short() -> None:
    sizes = {relative(p): len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    sizes = {}
    for place, node in nodes(*FUNCTIONS):
        assert isinstance(node, FUNCTIONS)
        sizes[f"{place} {node.name}"] = (node.end_lineno or 0) - node.lineno + 1
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_every_module_says_what_it_is() -> None:
    assert [relative(p) for p in SOURCES if not ast.get_docstring(tree(p))] == []


def test_only_the_command_line_prints() -> None:
    """stdout is data, and whose data it is only the command line knows."""
    found = [
        place
        for place, node in nodes(ast.Call)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and not place.startswith("quantkit/cli/")
    ]
    assert [place for place in found if not place.startswith("quantkit/progress.py")] == []


CATCH_ALL = {
    "quantkit/cli/main.py": "the outermost frame, where a crash becomes an exit code",
    "quantkit/splice/trail.py": "a thread, which hands the error to the one that waits for it",
}


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """Whether it takes any exception and does not raise it again."""
    names = {n.id for n in ast.walk(handler) if isinstance(n, ast.Name)}
    broad = handler.type is None or bool(names & {"Exception", "BaseException"})
    raises = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(handler))
    return broad and not raises


def test_no_except_catches_everything() -> None:
    found = {
        place.partition(":")[0]
        for place, node in nodes(ast.ExceptHandler)
        if isinstance(node, ast.ExceptHandler) and catches_everything(node)
    }
    assert found <= set(CATCH_ALL)


def test_oracles_and_peers_are_not_dependencies() -> None:
    """transformers judges the mathematics in the tests; the product never imports it."""
    forbidden = {"transformers", "pytest", "hypothesis"}
    found = []
    for place, node in nodes(ast.Import, ast.ImportFrom):
        names = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        found += [place for name in names if name.split(".")[0] in forbidden]
    assert found == []
