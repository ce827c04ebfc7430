"""The documentation holds: links lead somewhere, names exist, examples run, tables are printed."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vtsim.cli.main import run
from vtsim.registry import POLICIES
from vtsim.testing.conformance import check_policy

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLE = ROOT / "docs" / "examples" / "exact.py"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_exist(page: Path) -> None:
    """`vtsim.a.b.Class.method` in a page is a module's attribute, a module, or a group of entry
    points."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for dotted in re.findall(r"`(vtsim(?:\.\w+)+)`", page.read_text()):
        assert dotted in groups or resolve(dotted), dotted


def resolve(dotted: str) -> bool:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part) and part not in getattr(found, "__annotations__", ()):
                return False
            found = getattr(found, part, None)
        return True
    return False


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```python\n" in page.read_text()],
    ids=name,
)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    """The Python of a page, from top to bottom, as one program beside docs/examples."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    code = f"import sys\nsys.path.insert(0, {str(EXAMPLE.parent)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_policy_has_a_page() -> None:
    for policy in POLICIES.built_in:
        text = (ROOT / "docs" / "policies" / f"{policy}.md").read_text()
        for parameter in getattr(POLICIES.load(policy).parameters_type, "__annotations__", {}):
            assert f"| `{parameter}` |" in text, f"{policy}: {parameter}"


def test_the_example_policy_is_held_to_the_contract() -> None:
    check_policy(POLICIES.find(f"{EXAMPLE}:Exact"), seeds=range(4))


def test_the_readme_shows_what_the_demo_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.search(r"^```\n(memory .*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert shown is not None
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["replay", str(ROOT / "traces" / "samples" / "multi-turn.json")]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(printed) if line.startswith("memory "))
    lines = shown[1].splitlines()
    assert printed[start : start + len(lines)] == lines
