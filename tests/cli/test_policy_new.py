"""`vtsim policy new`: the package works at once, by name and as a file, and bad names are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtsim.cli.main import run
from vtsim.cli.scaffold import FILES, names_for
from vtsim.registry import POLICIES

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "traces" / "samples" / "multi-turn.json"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a policy `grow-plain`, with the metadata that an installation writes."""
    folder = tmp_path_factory.mktemp("new") / "grow-plain"
    assert run(["policy", "new", "grow-plain", "--out", str(folder)]) == 0
    code = "from setuptools import setup; setup()"
    subprocess.run(
        [sys.executable, "-c", code, "-q", "egg_info"], cwd=folder, check=True, capture_output=True
    )
    return folder


def vtsim(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that finds the package installed."""
    return subprocess.run(
        [sys.executable, "-m", "vtsim.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        cwd=package.parent,
    )


def test_it_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "new", "mine", "--out", str(tmp_path / "deep" / "mine")]) == 0
    said = capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "deep" / "mine").iterdir())
    assert files == ["README.md", "pyproject.toml", "test_vtsim_mine.py", "vtsim_mine.py"]
    assert all(name in said for name in files) and "vtsim policy check mine" in said
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["mine"]


def test_its_own_test_passes(package: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "0 or bad"],
        cwd=package,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_its_name_is_known_once_it_is_installed(package: Path) -> None:
    done = vtsim(package, "policies")
    assert "grow-plain: contiguous ranges, backed as they grow" in done.stdout, done.stderr
    assert "--set grow-plain.ahead=1  (int)  units mapped beyond" in done.stdout


def test_it_replays_with_its_parameter(package: Path) -> None:
    done = vtsim(
        *(package, "replay", str(SAMPLE), "--policy", "grow-plain", "--json", "-", "-q"),
        *("--set", "grow-plain.ahead=4", "--kv-memory", "1GiB", "--check"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)["runs"][0]
    assert document["parameters"] == {"ahead": 4}
    assert document["requests"]["completed"] == 300 and document["requests"]["preemptions"] > 0


def test_it_replays_from_its_file(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = f"{package / 'vtsim_grow_plain.py'}:GrowPlainPolicy"
    assert run(["replay", str(SAMPLE), "--policy", where, "--limit", "20"]) == 0
    assert "grow-plain: kernel flash, ahead 1" in capsys.readouterr().out


def test_pip_installs_it(package: Path, tmp_path: Path) -> None:
    """As its README says, but for the place; it needs setuptools from an index."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in package.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    done = subprocess.run([*pip, str(copy)], capture_output=True, text=True)
    if done.returncode and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("no index that has setuptools")
    assert done.returncode == 0, done.stderr
    assert "grow-plain" in vtsim(site, "policies").stdout


@pytest.mark.parametrize("name", ["a", "grow-plain", "Two_words", "x" * 32])
def test_what_it_writes_is_linted(name: str, tmp_path: Path) -> None:
    ruff = pytest.importorskip("ruff", reason="ruff is not installed").__name__
    assert run(["policy", "new", name, "--out", str(tmp_path / "p")]) == 0
    options = ["--isolated", "--line-length", "100"]
    rules = ["--select", "E,F,I,B,UP,TID"]
    for command in (["check", *options, *rules], ["format", "--check", *options]):
        done = subprocess.run(
            [sys.executable, "-m", ruff, *command, "."],
            cwd=tmp_path / "p",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


def test_what_it_writes_is_typed(package: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(package / "vtsim_grow_plain.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["", "3x", "a b", "a.b", "x=y", "-x", "a--b", "né", "x" * 33])
def test_a_name_that_cannot_be_one_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "new", "--out", str(tmp_path / "p"), "--", name]) == 2
    assert capsys.readouterr().err.startswith(f"vtsim: policy name {name!r}: wanted are letters")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*POLICIES.built_in, "elastic_paged", "VTensor"])
def test_a_name_that_is_taken_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "new", name, "--out", str(tmp_path / "p")]) == 2
    assert f"policy name {name!r} is taken" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert run(["policy", "new", "mine"]) == 2
    assert capsys.readouterr().err == "vtsim: cannot write mine: it exists\n"
    (tmp_path / "file").write_text("kept")
    assert run(["policy", "new", "mine", "--out", "file/below"]) == 2
    assert capsys.readouterr().err.startswith("vtsim: cannot write file/below: ")
    assert (tmp_path / "file").read_text() == "kept" and not list((tmp_path / "mine").iterdir())


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, encoding: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert run(["policy", "new", "mine", "--out", str(tmp_path / "mine")]) == 2
    assert not list(tmp_path.iterdir())


def test_a_policy_may_be_called_as_a_module_of_python() -> None:
    assert names_for("json")["module"] == "vtsim_json"
    assert names_for("class")["cls"] == "Class"


def test_templates_are_in_the_wheel() -> None:
    """Each is where setuptools is told to look for what is no module."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["vtsim.cli"]
    found = {path.name for pattern in patterns for path in (ROOT / "cli").glob(pattern)}
    assert found == {f"{template}.tmpl" for template in FILES}
