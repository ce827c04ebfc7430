"""Names, parameters and sizes as users write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from vtsim.errors import ConfigError
from vtsim.parameters import make_parameters, parameters_of
from vtsim.quantities import format_bytes, format_seconds, parse_bytes
from vtsim.registry import POLICIES, choose_policies, parse_settings

PLUGIN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Parameters:
    size: int = 3

class Mine:
    name = "mine"
    parameters_type = Parameters
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One field of every kind."""

    chunk_bytes: int = 2 << 20
    initial_tokens: int = 0
    share: float = 0.5
    release: Literal["unmap", "park"] = "unmap"
    cached: bool = True
    retain_bytes: int | None = None
    note: str = ""
    pool: int = field(default=1, metadata={"unit": "bytes", "doc": "of the pool"})

    def __post_init__(self) -> None:
        if self.initial_tokens < 0:
            raise ValueError("initial_tokens must not be negative")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40GiB", 40 * 2**30),
        ("2 mib", 2 << 20),
        ("80GB", 80 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1e9", 10**9),
        ("1048576", 1 << 20),
        ("7B", 7),
        (12, 12),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "40G", "nan", "inf", "0.3B", "1 2", "0x10"])
def test_bad_sizes_name_what_they_are_for(text: str) -> None:
    with pytest.raises(ConfigError, match="^gpu memory: "):
        parse_bytes(text, "gpu memory")


@pytest.mark.parametrize("value", [-1, True])
def test_bad_numbers_of_bytes(value: int) -> None:
    with pytest.raises(ConfigError, match="not a size in bytes"):
        parse_bytes(value)


def test_sizes_and_times_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1536, 57 * 2**30, 5 << 20, 3 << 40)] == [
        *("0 B", "1023 B", "1.50 KiB", "57.0 GiB", "5.00 MiB", "3.00 TiB")
    ]
    assert [format_seconds(s) for s in (0, 2e-6, 0.0335, 9.5, 350, 12345)] == [
        *("0 s", "2.0 µs", "33.5 ms", "9.50 s", "350.0 s", "3:25:45 h")
    ]


def test_parameters_are_read_by_their_types() -> None:
    made = make_parameters(
        "vtensor",
        Sample,
        {
            "chunk_bytes": "4MiB",
            "initial_tokens": "16",
            "share": "0.25",
            "release": "park",
            "cached": "off",
            "retain_bytes": "1GiB",
            "note": "none",
            "pool": 9,
        },
    )
    assert made == Sample(4 << 20, 16, 0.25, "park", False, 2**30, "none", 9)
    assert make_parameters("vtensor", Sample, {"retain_bytes": "none"}).retain_bytes is None
    described = {p.name: p.describe() for p in parameters_of(Sample)}
    assert described["release"] == "unmap | park"
    assert described["retain_bytes"] == "size | none"
    assert described["initial_tokens"] == "int"
    assert parameters_of(Sample)[-1].doc == "of the pool"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("chunk", "1", "no parameter 'chunk' .known: chunk_bytes, .*did you mean 'chunk_bytes'"),
        ("chunk_bytes", "2Mi", "vtensor.chunk_bytes: unknown unit 'Mi'"),
        ("initial_tokens", "1.5", "'1.5' is not int"),
        ("initial_tokens", "-1", "vtensor: initial_tokens must not be negative"),
        ("share", "nan", "'nan' is not float"),
        ("release", "drop", "'drop' is not unmap | park"),
        ("cached", "maybe", "'maybe' is not bool"),
    ],
)
def test_bad_parameters_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_parameters("vtensor", Sample, {name: value})


def test_unknown_policies_name_the_known() -> None:
    with pytest.raises(ConfigError, match="unknown policy 'x' .known: native, paged, vtensor"):
        POLICIES.load("x")


def test_one_policy_may_run_with_several_settings() -> None:
    small, large = choose_policies(
        ["small=paged", "paged"], parse_settings(["small.block=8", "paged.num_gpu_blocks=5"])
    )
    assert (small.label, large.label) == ("small", "paged")
    assert small.policy is large.policy
    assert (small.parameters.block, large.parameters.block) == (8, 16)
    assert large.parameters.num_gpu_blocks == 5


@pytest.mark.parametrize(
    ("names", "settings", "words"),
    [
        ([], [], "no policy"),
        (["paged", "paged"], [], "'paged' is named twice"),
        (["paged"], ["block=8"], "is not POLICY.PARAM=VALUE"),
        (["paged"], ["paged.block"], "is not POLICY.PARAM=VALUE"),
        (["paged"], ["native.block=8"], "'native': no such policy runs here .these do: paged"),
        (["paged"], ["paged.blocks=8"], "no parameter 'blocks'.*did you mean 'block'"),
        (["paged"], ["paged.block=8", "paged.block=9"], "paged.block is set twice: 8 and 9"),
        (["small=paged"], ["small.block=0"], "^small.block: must be >= 1, got 0"),
        (["a=vtensor"], ["a.growth=4"], "^a.growth: 4 does nothing without a max_chunk"),
    ],
)
def test_bad_choices(names: list[str], settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_policies(names, parse_settings(settings))


def test_a_policy_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    [choice] = choose_policies([f"{path}:Mine"], {"mine": {"size": 8}})
    assert choice.label == "mine" and choice.parameters.size == 8
    assert POLICIES.find(f"{path}:Mine") is choice.policy
    with pytest.raises(ConfigError, match="no 'Other' in "):
        POLICIES.find(f"{path}:Other")
    with pytest.raises(ConfigError, match="no file"):
        POLICIES.find(f"{tmp_path}/none.py:Mine")
    path.with_name("broken.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="cannot be loaded: ZeroDivisionError"):
        POLICIES.find(f"{tmp_path}/broken.py:Mine")
