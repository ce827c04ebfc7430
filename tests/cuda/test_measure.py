"""doctor and calibrate: what they say of a card, and the profile that comes out."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from vtsim.backends.cuda.calibrate import measure, profile_text
from vtsim.backends.cuda.doctor import diagnose, profile_costs, profile_for
from vtsim.backends.cuda.driver import CudaDriver, DeviceOutOfMemory
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.cuda.measure import CALLS, Spread, map_rate, time_allocations, time_calls
from vtsim.backends.gpus import PROFILES, gpus, load_gpu
from vtsim.cli.main import run
from vtsim.errors import ConfigError

M = 1 << 20


def fake() -> FakeCuda:
    return FakeCuda(name="NVIDIA H200", total_bytes=20 << 30, context_bytes=500 * M)


def test_spreads_are_of_the_sorted_durations() -> None:
    spread = Spread.of([n / 1e6 for n in range(100, -1, -1)])
    assert spread.p50 == pytest.approx(50)
    assert spread.p99 == pytest.approx(99)
    assert spread.count == 101


def test_every_call_is_timed_and_everything_given_back(device: CudaDriver) -> None:
    free = device.memory()[0]
    calls = time_calls(device, 2 * M, 16)
    assert tuple(calls) == CALLS
    assert all(0 < spread.p50 <= spread.p99 for spread in calls.values())
    assert calls["map"].count == 16
    allocations = time_allocations(device, (2 * M, 64 * M), 3)
    assert list(allocations) == [2 * M, 64 * M]
    assert map_rate(device, 2 * M, 8) > 0
    assert device.memory()[0] == free


def test_a_small_card_is_measured_with_fewer_chunks() -> None:
    driver = CudaDriver(api=FakeCuda(total_bytes=10 * M))
    assert time_calls(driver, 2 * M, 16)["create"].count == 5
    assert list(time_allocations(driver)) == [2 * M]
    with pytest.raises(DeviceOutOfMemory):
        time_calls(driver, 16 * M, 4)
    driver.close()


def test_a_calibrated_profile_is_the_base_with_measured_memory(tmp_path: Path) -> None:
    api = fake()
    driver = CudaDriver(api=api)
    measured = measure(driver, chunks=16)
    driver.close()
    assert api.leaks() == {}
    path = tmp_path / "mine.toml"
    path.write_text(profile_text(PROFILES / "h200.toml", "mine", measured))
    base, mine = load_gpu("h200"), load_gpu(path)
    assert (mine.name, mine.capacity_bytes, mine.context_bytes) == ("mine", 20 << 30, 500 * M)
    assert mine.decode == base.decode and mine.linear == base.linear and mine.host == base.host
    assert [table.page_bytes for table in mine.vmm] == [2 * M, 64 * M]
    median = mine.vmm[0].create.median / 1e6
    assert median == pytest.approx(measured.calls[2 * M]["create"].p50, abs=0.01)
    assert mine.allocation.sizes_bytes == (2 * M, 64 * M, 1 << 30, 8 << 30)
    assert "measured by vtsim calibrate on NVIDIA H200" in mine.sources()["vmm.2MiB.map_us"]
    with pytest.raises(ConfigError, match="cannot be read"):
        profile_text(tmp_path / "none.toml", "x", measured)


def test_cards_find_their_profile() -> None:
    known = gpus()
    for name, profile in (
        ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
    ):  # fmt: skip
        found = profile_for(name, known)
        assert found is not None and found.name == profile
    assert profile_for("NVIDIA GeForce GTX 1080", known) is None
    assert profile_costs(known["h200"], 2 * M)["map"] == (3.0, 13.0)


def test_a_diagnosis_never_raises() -> None:
    found = diagnose(api=fake(), chunks=8)
    assert found.card is not None and found.card.name == "NVIDIA H200" and not found.trouble
    sick = diagnose(api=FakeCuda(vmm=False))
    assert sick.card is None and "does not support virtual memory" in sick.trouble
    assert diagnose(3, api=fake()).trouble.startswith("no CUDA device 3")


class TestCommands:
    @pytest.fixture
    def card(self, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
        module = importlib.import_module("vtsim.backends.cuda.driver")
        api = fake()
        monkeypatch.setattr(module, "load_api", lambda: api)
        return api

    def test_doctor(self, card: FakeCuda, capsys: Any) -> None:
        assert run(["doctor", "--chunks", "8"]) == 0
        shown = capsys.readouterr().out
        assert "card 0: NVIDIA H200, CUDA 13.0" in shown and "set access" in shown
        assert "19.51 GiB free of 20 GiB" in shown or "free of" in shown
        assert "h200" in shown and "torch:" in shown
        assert card.leaks() == {}

    def test_doctor_without_a_card(self, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        module = importlib.import_module("vtsim.backends.cuda.driver")

        def missing() -> Any:
            raise ConfigError("real GPU memory needs the CUDA driver bindings")

        monkeypatch.setattr(module, "load_api", missing)
        assert run(["doctor"]) == 1
        assert "real memory: no (real GPU memory needs" in capsys.readouterr().out

    def test_calibrate(self, card: FakeCuda, tmp_path: Path, capsys: Any) -> None:
        path = tmp_path / "lab-card.toml"
        assert run(["calibrate", "memory", str(path)]) == 0
        assert load_gpu(path).name == "lab-card"
        assert card.leaks() == {}

    def test_calibrate_wants_a_base_for_an_unknown_card(
        self, card: FakeCuda, tmp_path: Path, capsys: Any
    ) -> None:
        card.name = "Something Else"
        path = tmp_path / "x.toml"
        assert run(["calibrate", "memory", str(path)]) == 2
        assert "name one with --base" in capsys.readouterr().err
        assert run(["calibrate", "memory", str(path), "--base", "a100-80g", "--name", "y"]) == 0
        assert load_gpu(path).name == "y"
        assert run(["calibrate", "memory", "/nowhere/x.toml"]) == 2
