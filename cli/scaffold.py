"""Writes the small package that `vtsim policy new` makes: templates with names filled in.

The package is written aside and renamed when complete. Nothing here knows what a policy does.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template

from vtsim.errors import ConfigError
from vtsim.registry import POLICIES

FILES = {
    "policy.py": "{module}.py",
    "test.py": "test_{module}.py",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
}
"""Template -> name of the file it becomes."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
_LONGEST = 32


def names_for(name: str) -> dict[str, str]:
    """What the templates need: the policy's name and those that are made of it. Raises
    `ConfigError`: no name for a policy, or one that is taken."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ConfigError(
            f"policy name {name!r}: wanted are letters and digits in words joined by - or _, "
            f"a letter first, {_LONGEST} at most"
        )
    plain = name.replace("-", "_").lower()
    for known in POLICIES.names():
        if plain == known.replace("-", "_").lower():
            raise ConfigError(f"policy name {name!r} is taken: `vtsim policies` lists {known!r}")
    words = re.split(r"[-_]", name)
    return {
        "name": name,
        "distribution": "vtsim-" + plain.replace("_", "-"),
        "module": f"vtsim_{plain}",  # never the name of a module of Python's
        "cls": "".join(word[0].upper() + word[1:] for word in words),
    }


def write_package(name: str, folder: Path) -> list[str]:
    """Make `folder` with the package of policy `name`, whole or not at all; returns its files.
    Raises `ConfigError`: a bad name, a folder that exists or cannot be made."""
    names = names_for(name)
    if os.path.lexists(folder):
        raise ConfigError(f"cannot write {folder}: it exists")
    templates = files("vtsim.cli") / "templates" / "policy"
    written = {
        target.format_map(names): Template(
            (templates / f"{template}.tmpl").read_text(encoding="utf-8")
        ).substitute(names)
        for template, target in FILES.items()
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for file, text in written.items():
                (aside / file).write_text(text, encoding="utf-8")
            aside.chmod(0o777 & ~_umask())
            os.rename(aside, folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    return list(written)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
