"""GPU profiles: the bundled ones are sound, and a bad one is refused with file and key."""

import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from vtsim.backends.gpus import PROFILES, gpus, load_gpu
from vtsim.errors import ConfigError
from vtsim.spec import CallCost

US = 10**6


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[str, str], Path]:
    def edit(old: str, new: str) -> Path:
        text = (PROFILES / "h200.toml").read_text()
        assert text.count(old) >= 1, old
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new, 1))
        return path

    return edit


def test_the_bare_name_backends_is_refused() -> None:
    spec = importlib.util.spec_from_file_location("backends", PROFILES.parent / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match="imported as vtsim.backends, not as backends"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_bundled_profiles() -> None:
    assert list(gpus()) == ["a100-80g", "a100-80g-slow-create", "h100-80g", "h200", "rtx-pro-6000"]


@pytest.mark.parametrize("name", list(gpus()))
class TestEveryProfile:
    def test_is_named_as_its_file(self, name: str) -> None:
        assert load_gpu(name).name == name

    def test_every_number_has_a_source_and_what_is_assumed_a_reason(self, name: str) -> None:
        spec = load_gpu(name)
        keys = [entry.key for entry in spec.provenance]
        assert len(keys) == len(set(keys))
        assert all(entry.source for entry in spec.provenance)
        assert set(spec.assumed()) <= set(spec.sources())

    def test_digest_is_of_the_file(self, name: str) -> None:
        digest = hashlib.sha256((PROFILES / f"{name}.toml").read_bytes()).hexdigest()
        assert load_gpu(name).sha256 == digest

    def test_sizes_are_plausible(self, name: str) -> None:
        spec = load_gpu(name)
        assert spec.context_bytes < spec.capacity_bytes <= spec.memory_bytes
        assert spec.capacity_bytes % (1 << 20) == 0 or name == "h200" or name == "rtx-pro-6000"
        assert spec.va_bytes == 64 << 40

    def test_attained_rates_stay_under_the_peaks(self, name: str) -> None:
        spec = load_gpu(name)
        rates = [kernel.bytes_per_s for kernel in spec.decode.values()]
        rates += [kernel.bytes_per_s for kernel in spec.prefill.values()]
        rates += [spec.linear.weight_bytes_per_s, spec.copy_bytes_per_s]
        assert max(rates) < spec.dram_bytes_per_s
        flops = [kernel.causal_flops_per_s for kernel in spec.prefill.values()]
        flops += [kernel.prefix_flops_per_s for kernel in spec.prefill.values()]
        assert max(flops) < spec.bf16_flops_per_s

    def test_has_the_kernel_families(self, name: str) -> None:
        spec = load_gpu(name)
        assert set(spec.decode) >= {"flash", "flash_paged", "paged_cuda"}
        assert set(spec.prefill) >= {"flash", "flash_paged", "triton_prefix"}


def test_the_two_a100_tables_differ_only_where_their_sources_do() -> None:
    fast, slow = load_gpu("a100-80g"), load_gpu("a100-80g-slow-create")
    assert fast.linear == slow.linear and fast.decode == slow.decode and fast.host == slow.host
    assert fast.prefill == slow.prefill and fast.allocation == slow.allocation
    assert fast.vmm[-1].create == CallCost(29 * US)
    assert slow.vmm[-1].create == CallCost(195 * US, 381 * US)


def test_a_12k_prompt_costs_what_facts_says_of_the_two_a100_sources() -> None:
    chunks = 12_000 * 65536 / (2 << 20)
    for name, low, high in (("a100-80g", 25, 27), ("a100-80g-slow-create", 86, 88)):
        costs = load_gpu(name).vmm[-1]
        call = costs.create.median + costs.map.median + costs.set_access.median
        assert low < chunks * call / 10**9 < high


def test_small_pages_need_the_patched_driver() -> None:
    spec = load_gpu("a100-80g")
    assert (spec.granularity_bytes, spec.patched_granularity_bytes) == (2 << 20, 64 << 10)
    assert [costs.page_bytes >> 10 for costs in spec.vmm] == [64, 128, 256, 2048]
    assert load_gpu("h200").patched_granularity_bytes == 2 << 20


def test_with_capacity_keeps_the_rest() -> None:
    spec = load_gpu("a100-80g")
    small = spec.with_capacity(40 << 30)
    assert (small.memory_bytes, small.capacity_bytes) == (40 << 30, 40 << 30)
    assert (small.name, small.sha256, small.vmm) == (spec.name, spec.sha256, spec.vmm)


def test_a_profile_by_path(edited: Callable[[str, str], Path]) -> None:
    spec = load_gpu(edited('name = "h200"', 'name = "mine"'))
    assert spec.name == "mine"
    assert spec.vmm == load_gpu("h200").vmm


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown GPU: v100 \(known GPUs: a100-80g, "):
        load_gpu("v100")


def test_a_missing_file_is_called_a_file() -> None:
    with pytest.raises(ConfigError, match="no such GPU profile: nowhere/x.toml"):
        load_gpu("nowhere/x.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("granularity_bytes = 2097152", "granularity = 2097152", "memory.granularity_bytes: miss"),
        ("granularity_bytes = 2097152", "granularity_bytes = -1", "memory.granularity_bytes: must"),
        ("granularity_bytes = 2097152", "granularity_bytes = 2.5", "must be whole bytes, got 2.5"),
        ("[links]", "[links]\nspare = 1", "links.spare: unknown key"),
        ("[links]", "spare = 1\n[links]", "prefill.triton_prefix.spare: unknown key"),
        ("[memory]", "[spare]\n[memory]", "spare: unknown key"),
        ("bf16_flops_per_s = 989e12", "bf16_flops_per_s = inf", "bf16_flops_per_s: must be finite"),
        ("bf16_flops_per_s = 989e12", "bf16_flops_per_s = nan", "bf16_flops_per_s: must be finite"),
        ("bf16_flops_per_s = 989e12", "bf16_flops_per_s = 0", "bf16_flops_per_s: must be positive"),
        ("bf16_flops_per_s = 989e12", "bf16_flops_per_s = true", "must be a number, got True"),
        ("bf16_flops_per_s = 989e12", 'bf16_flops_per_s = "9"', "must be a number, got '9'"),
        ("per_step_us = 100.0", "per_step_us = -1.0", "host.per_step_us: must be finite and not b"),
        ('source = "NVIDIA H200 datasheet"\n', "", "bf16_flops_per_s: has neither a source nor"),
        ("p99 = 33.0", "p99 = 3.0", "vmm.2MiB.create_us.p99: needs a positive median"),
        ("p99 = 33.0", "p98 = 33.0", "vmm.2MiB.create_us.p98: unknown key"),
        ("value = 20.0", "worth = 20.0", "vmm.2MiB.reserve_us.worth: unknown key"),
        ("[0.086,", "[", "linear.efficiency: must have 6 values, one a point, got 5"),
        ("[0.086,", "[1.5,", "linear.efficiency: is a share of the peak, got 1.5"),
        ("[16, 64,", "[64, 16,", "linear.tokens: must rise"),
        ("[44.0,", "[-44.0,", "allocation.allocate_us: must be finite and not below 0"),
        ("[44.0, 57.0, 117.0, 623.0]", "44.0", "allocation.allocate_us: must be a list of numbers"),
        ("page_bytes = 67108864", "page_bytes = 4096", "vmm.64MiB.page_bytes: must rise"),
        ('title = "', 'title = 3 #"', "title: must be a text, got 3"),
        ('name = "h200"', "name = ", "not a readable TOML file"),
        ('name = "h200"', 'name = "h200"\ndecode.x = 3', "decode.x: must be a table, got 3"),
        ("{ value = 20.0, source", "{ source", "vmm.2MiB.reserve_us.value: missing"),
        (
            "granularity_bytes = 2097152",
            "granularity_bytes = 2097152\npatched_granularity_bytes = 65537",
            "memory.patched_granularity_bytes: must divide 2097152",
        ),
        ("assumed = true", "assumed = 1", "source must be a text, assumed true or false"),
    ],
)
def test_what_is_amiss_is_named_with_file_and_key(
    edited: Callable[[str, str], Path], old: str, new: str, message: str
) -> None:
    path = edited(old, new)
    with pytest.raises(ConfigError) as error:
        load_gpu(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_tables_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text('name = "x"\n')
    with pytest.raises(ConfigError, match=": title, memory, compute, .*, allocation: missing$"):
        load_gpu(path)
