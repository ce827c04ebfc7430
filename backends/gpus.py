"""GPU profiles by name: where the TOML files lie. What is in them is `vtsim.spec`'s business."""

from __future__ import annotations

from pathlib import Path

from vtsim.errors import ConfigError
from vtsim.spec import GpuSpec, parse_gpu

PROFILES = Path(__file__).parent / "profiles"


def _known() -> dict[str, Path]:
    return dict(sorted((path.stem, path) for path in PROFILES.glob("*.toml")))


def gpus() -> dict[str, GpuSpec]:
    """All profiles that come with vtsim, by name."""
    return {name: parse_gpu(path) for name, path in _known().items()}


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """A profile by name or from a TOML file.

    Raises ConfigError: unknown name (with the known ones), or what is amiss in the file.
    """
    known = _known()
    path = known.get(str(name_or_path), Path(name_or_path))
    if not path.is_file():
        looks_like_path = len(path.parts) > 1 or path.suffix == ".toml"
        what = "no such GPU profile" if looks_like_path else "unknown GPU"
        raise ConfigError(
            f"{what}: {name_or_path} (known GPUs: {', '.join(known)}; or the path of a profile)"
        )
    return parse_gpu(path)
