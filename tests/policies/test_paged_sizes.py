"""The paged pool's size: refused where it cannot be, and told as derived and as it was."""

from __future__ import annotations

from typing import Any

import pytest

import vtsim
from vtsim.policies.paged import PagedParameters
from vtsim.traces.bundled import sample_path


@pytest.mark.parametrize(("field", "value"), [("block", 0), ("block", -16), ("num_gpu_blocks", -1)])
def test_impossible_sizes_are_refused(field: str, value: int) -> None:
    with pytest.raises(vtsim.ConfigError, match=rf"paged\.{field}: must be >= \d, got {value}$"):
        fields: dict[str, Any] = {field: value}
        PagedParameters(**fields)


def test_a_measured_pool_is_told_beside_the_derived_one() -> None:
    block_bytes = 16 * 65536  # Yi-6B, tp 1
    asked: dict[str, Any] = {"limit": 20, "kv_memory": 5000 * block_bytes + 1}
    derived, measured = (
        vtsim.replay(sample_path("chat"), ["paged"], num_gpu_blocks=given, **asked)["paged"]
        for given in (None, 4000)
    )
    assert derived.details == {"derived_blocks": 5000, "blocks": 5000}
    assert measured.details == {"derived_blocks": 5000, "blocks": 4000}
    for run, blocks in ((derived, 5000), (measured, 4000)):
        memory = run.summary["memory"]
        peak = memory["peak_bytes"]
        fixed = peak["weights"] + peak["workspace"] + peak["context"]
        pool = memory["capacity_bytes"] - fixed - memory["free_bytes"]["min"]
        assert pool == blocks * block_bytes
