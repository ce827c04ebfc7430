"""Outputs appear whole or not at all, and bad paths are refused before a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from vtsim.errors import ConfigError
from vtsim.metrics import output


def test_a_file_is_replaced_with_its_mode_and_links_kept(tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(real)
    output.check_file(link)
    output.write_text(link, "new\n")
    assert link.is_symlink() and real.read_text() == "new\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_the_old_file_stands_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def interrupted(source: object, destination: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        output.write_text(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def good(path: Path) -> None:
        path.write_text("good")

    def bad(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="cannot write into .*run: disk full"):
        output.write_folder(folder, {"a": good, "b": bad}, frozenset())
    assert list(tmp_path.iterdir()) == []
    output.write_folder(folder, {"a": good, "b": good}, frozenset({"a", "b"}))
    output.write_folder(folder, {"a": good}, frozenset({"a", "b"}))
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    output.check_file(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    output.write_text(pipe, "through\n")
    reader.join(10)
    assert got == ["through\n"]
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_standard_output_and_descriptors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("-", "/dev/stdout"):
        output.check_file(name)
        assert output.is_stdout(name)
        output.write_text(name, "here\n")
    assert capsys.readouterr().out == "here\nhere\n"
    target = tmp_path / "fd"
    with open(target, "w") as stream:
        output.write_text(f"/dev/fd/{stream.fileno()}", "by number\n")
    assert target.read_text() == "by number\n"
    assert not output.is_stdout(target)
    output.write_text("/dev/null", "gone")


@pytest.mark.parametrize(
    ("name", "words"),
    [(".", "is a folder"), ("none/a.json", "no folder"), ("file/a.json", "no folder")],
)
def test_bad_file_paths_are_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=words):
        output.check_file(tmp_path / name)


def test_bad_folder_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a folder"):
        output.check_folder(tmp_path / "file", "result.json")
    with pytest.raises(ConfigError, match="no folder"):
        output.check_folder(tmp_path / "file" / "run", "result.json")
    output.check_folder(tmp_path / "a" / "b", "result.json")
    assert not (tmp_path / "a").exists()


def test_what_the_user_may_not_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.access is asked rather than the mode bits, which do not bind root."""
    target = tmp_path / "a.json"
    target.write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="permission denied"):
        output.check_file(target)
    with pytest.raises(ConfigError, match="not writable"):
        output.check_file(tmp_path / "new.json")
    with pytest.raises(ConfigError, match="permission denied"):
        output.check_folder(tmp_path, "result.json")


def test_a_folder_of_other_things_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds files, but no earlier run"):
        output.check_folder(tmp_path, "result.json")
    (tmp_path / "result.json").write_text("{}")
    output.check_folder(tmp_path, "result.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "result.json"]


def test_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "back")
    (tmp_path / "back").symlink_to(tmp_path / "loop")
    for bad in ("", f"{tmp_path}/a/", tmp_path / ("a" * 300), tmp_path / "loop", "/dev/fd/777"):
        with pytest.raises(ConfigError, match="cannot write"):
            output.check_file(bad)
    for bad in ("", "/", tmp_path / ("a" * 300), tmp_path / "loop", tmp_path / "loop" / "x"):
        with pytest.raises(ConfigError, match="cannot write"):
            output.check_folder(bad, "result.json")
    output.check_file(tmp_path / ("a" * 250))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "loop"]
