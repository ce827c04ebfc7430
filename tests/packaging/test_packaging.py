"""What the package says of itself holds: packages, links, plug-ins, dependencies."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vtsim.registry import BACKENDS, POLICIES
from vtsim.traces import registry as readers

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("backends", "policies", "traces", "cli")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources() -> Iterator[Path]:
    """Every module of the package, by its real path."""
    for name in LINKED:
        yield from (ROOT / name).rglob("*.py")
    for path in (ROOT / "vtsim").rglob("*.py"):
        if path.relative_to(ROOT / "vtsim").parts[0] not in LINKED:
            yield path


def test_every_package_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    roots = {"vtsim": ROOT / "vtsim", **{f"vtsim.{name}": ROOT / name for name in LINKED}}
    found = {
        ".".join((package, *init.parent.relative_to(folder).parts))
        for package, folder in roots.items()
        for init in folder.rglob("__init__.py")
        if not (package == "vtsim" and init.relative_to(folder).parts[0] in LINKED)
    }
    assert listed == found


def test_links_point_at_the_root_folders() -> None:
    for name in LINKED:
        link = ROOT / "vtsim" / name
        assert not link.exists() or link.is_file() or link.resolve() == ROOT / name


@pytest.mark.parametrize("name", LINKED)
def test_a_root_folder_refuses_its_bare_name(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / name / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=f"vtsim.{name}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_entry_points_are_the_built_in_tables() -> None:
    points = PROJECT["project"]["entry-points"]
    assert points["vtsim.policies"] == dict(POLICIES.built_in)
    assert points["vtsim.backends"] == dict(BACKENDS.built_in)
    assert points["vtsim.readers"] == readers._BUILT_IN


def distribution(text: str) -> str:
    """The name in a requirement, as an import statement would spell it."""
    match = re.match(r"[A-Za-z0-9_.-]+", text)
    assert match is not None
    return match[0].lower().replace("-", "_")


def test_every_import_is_declared() -> None:
    """Third-party imports are dependencies, or extras of the folders that use them."""
    declared = {distribution(text) for text in PROJECT["project"]["dependencies"]}
    extras = {
        distribution(text)
        for group in PROJECT["project"]["optional-dependencies"].values()
        for text in group
    } | {"cuda"}  # what cuda-python installs
    used: dict[str, set[str]] = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                used.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    outside = used.keys() - sys.stdlib_module_names - {"vtsim"}
    undeclared = {name: used[name] for name in outside - declared - extras}
    assert not undeclared
    assert declared - outside <= {"pyarrow"}, "pandas loads pyarrow; all others are imported"
    for name in extras & outside:
        homes = ("backends/", "vtsim/testing/")
        assert not {path for path in used[name] if not path.startswith(homes)}, name
