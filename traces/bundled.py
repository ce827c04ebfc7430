"""The bundled samples, and how they were made: `python -m vtsim.traces.bundled` makes them anew.

Each equals, byte for byte, what the `vtsim trace synth` command beside it writes.
"""

from __future__ import annotations

from pathlib import Path

from vtsim.errors import ConfigError
from vtsim.traces.generate import Synth, generate
from vtsim.traces.lengths import Lengths
from vtsim.traces.writer import write_native

FOLDER = Path(__file__).parent / "samples"

COMMANDS = {
    "chat": "vtsim trace synth chat.json --requests 400 --seed 1 --rate 5",
    "multi-turn": "vtsim trace synth multi-turn.json --requests 300 --seed 2 --rate 1 --turns 4 "
    "--prompt lognormal:median=150,sigma=1,max=4000 --system-prompts 3 --system-tokens 1000 "
    "--block-size 64 --max-context 8000 --think 15",
}

SAMPLES = {
    "chat": Synth(requests=400, seed=1, rate=5.0),
    "multi-turn": Synth(
        requests=300,
        seed=2,
        rate=1.0,
        turns=4.0,
        prompt=Lengths.of("lognormal:median=150,sigma=1,max=4000"),
        system_prompts=3,
        system_tokens=1000,
        block_size=64,
        max_context=8000,
        think_s=15.0,
    ),
}
"""chat: single requests, Poisson, Azure-like lognormal lengths. multi-turn: conversations of four
turns on average under one of three system prompts, with hash ids."""


def sample_path(name: str) -> Path:
    """The file of a bundled sample; ConfigError with the known names if there is none such."""
    if name not in SAMPLES:
        raise ConfigError(f"unknown sample {name!r}; known: {', '.join(SAMPLES)}")
    return FOLDER / f"{name}.json"


def main() -> None:
    """Writes all samples in their place."""
    for name, spec in SAMPLES.items():
        write_native(generate(spec), sample_path(name))


if __name__ == "__main__":
    main()
