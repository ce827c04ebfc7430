"""`vtsim diff RUN [RUN]`: the first decision in which two runs part, with the state before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vtsim.cli.state import Debug
from vtsim.errors import ConfigError


def diff(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that --out has written.")],
    other: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Another; without it, two policies of the first."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL[:LABEL]",
            help="Which policy of each run. [default: every one that both have]",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Say where two runs part: status 0 if they do not, 1 if they do, as diff(1)."""
    from vtsim.report import diff as report
    from vtsim.report.saved import read_saved

    parted = False
    for number, (one, another) in enumerate(_pairs(run, other, policy)):
        if number:
            print()
        left, right = read_saved(run, one), read_saved(other or run, another)
        for line in report.diff(left, right):
            print(line)
        parted = parted or not report.same(left, right)
    if parted:
        raise typer.Exit(1)


def _pairs(run: Path, other: Path | None, policy: str | None) -> list[tuple[str, str]]:
    """Labels to compare, of the first run and of the other."""
    from vtsim.report.saved import labels_of

    ours = labels_of(run)
    theirs = ours if other is None else labels_of(other)
    if policy is not None:
        one, colon, another = policy.partition(":")
        if not one or (colon and not another):
            raise ConfigError(f"--policy {policy}: wanted is LABEL or LABEL:LABEL")
        if other is None and not colon:
            raise ConfigError(f"--policy {policy}: one run needs LABEL:LABEL, two of its policies")
        return [(one, another or one)]
    if other is None:
        if len(ours) != 2:
            raise ConfigError(
                f"{run}: which two policies? --policy LABEL:LABEL (there are: {', '.join(ours)})"
            )
        return [(ours[0], ours[1])]
    common = [label for label in ours if label in theirs]
    if not common and len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    if not common:
        raise ConfigError(
            f"no policy is in both runs: {', '.join(ours)} | {', '.join(theirs)} "
            "(--policy LABEL:LABEL)"
        )
    return [(label, label) for label in common]
