"""`vtsim trace info|convert|sample|synth`: look at a trace, turn it into another form, cut it, make
one. Arguments and printing only; the work is in `vtsim.traces`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from vtsim.cli.reading import keep, reading
from vtsim.errors import ConfigError
from vtsim.request import Trace

app = typer.Typer(
    help="Look at request traces; convert, cut and generate them.", no_args_is_help=True
)

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the numbers as JSON; - is stdout."),
]
Plot = Annotated[Path | None, typer.Option(help="Write a plot (PNG, SVG, PDF; needs matplotlib).")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Output = Annotated[str, typer.Argument(help="File to write; - is stdout.")]
Target = Annotated[
    str | None,
    typer.Option("--to", help="native, mooncake or aiperf. [default: by the ending of OUT]"),
]


@app.command()
@reading
def info(
    load: Callable[[], Trace], json_path: Json = None, plot: Plot = None, quiet: Quiet = False
) -> None:
    """Counts, lengths, arrivals, sharing and warnings of a trace."""
    from vtsim.traces.output import check_writable, writing
    from vtsim.traces.stats import describe

    if json_path is not None:
        check_writable(json_path)
    if plot is not None:
        from vtsim.traces.plot import check_plot, plot_trace

        check_plot(plot)
    trace = load()
    facts = describe(trace)
    if plot is not None:
        plot_trace(trace, plot)
    if json_path is not None:
        with writing(json_path) as stream:
            stream.write(json.dumps(facts, indent=1) + "\n")
    if not quiet and json_path != "-":
        from vtsim.cli.trace_table import print_facts

        print_facts(facts)


@app.command()
@reading
def convert(
    load: Callable[[], Trace], out: Output, to: Target = None, quiet: Quiet = False
) -> None:
    """Write a trace in another form, and say what that form cannot hold."""
    from vtsim.traces.export import check_target, export
    from vtsim.traces.output import check_writable

    check_writable(out)
    target = check_target(to, out)
    trace = load()
    lost = export(trace, out, target)
    if not quiet:
        _say_rows(trace)
        print(f"wrote {len(trace)} requests to {out} ({target})", file=sys.stderr)
        for line in lost:
            print(f"not kept by {target}: {line}", file=sys.stderr)


@app.command()
@reading
def sample(
    load: Callable[[], Trace],
    out: Output,
    requests: Annotated[int, typer.Option("--requests", "-n", help="At most so many requests.")],
    to: Target = None,
    sample_seed: Annotated[int, typer.Option(help="Seed of the choice.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Write a random choice of whole conversations, times unchanged."""
    from vtsim.traces.export import check_target, export
    from vtsim.traces.origin import with_origin
    from vtsim.traces.output import check_writable
    from vtsim.traces.transform import sample_requests

    check_writable(out)
    target = check_target(to, out)
    trace = sample_requests(load(), requests, sample_seed)
    trace = with_origin(trace, {"requests": requests, "sample_seed": sample_seed})
    lost = export(trace, out, target)
    if not quiet:
        _say_rows(trace)
        print(f"wrote {len(trace)} requests to {out} ({target})", file=sys.stderr)
        for line in lost:
            print(f"not kept by {target}: {line}", file=sys.stderr)


@app.command()
def synth(
    out: Output,
    requests: Annotated[int, typer.Option("--requests", "-n", help="Requests.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    rate: Annotated[float, typer.Option(help="Conversations a second.")] = 1.0,
    arrival: Annotated[str, typer.Option(help="poisson, gamma, uniform or diurnal.")] = "poisson",
    cv: Annotated[float, typer.Option(help="Coefficient of variation of gamma.")] = 2.0,
    period: Annotated[float, typer.Option(help="Period of diurnal, s.")] = 86400.0,
    depth: Annotated[float, typer.Option(help="Swing of diurnal, of the mean rate.")] = 0.8,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTHS",
            help="New tokens of a turn: lognormal:median=900,sigma=0.75,max=14050; "
            "uniform:min=1,max=9; fixed:value=8.",
        ),
    ] = None,
    output: Annotated[str | None, typer.Option(metavar="LENGTHS", help="Output tokens.")] = None,
    lengths_from: Annotated[
        str | None, typer.Option(metavar="TRACE", help="Draw both lengths from another trace's.")
    ] = None,
    turns: Annotated[float, typer.Option(help="Mean turns of a conversation.")] = 1.0,
    max_context: Annotated[int | None, typer.Option(help="Most tokens of a request.")] = None,
    think: Annotated[float, typer.Option(help="Mean time before a next turn, s.")] = 30.0,
    seconds_per_token: Annotated[
        float, typer.Option(help="Time that an output token takes before the next turn.")
    ] = 0.05,
    system_prompts: Annotated[int, typer.Option(help="Number of shared system prompts.")] = 0,
    system_tokens: Annotated[int, typer.Option(help="Their length.")] = 0,
    block_size: Annotated[int, typer.Option(help="Tokens a hash id; 0: no hash ids.")] = 0,
    to: Target = None,
    quiet: Quiet = False,
) -> None:
    """Generate a trace from stated distributions; its source says that it is synthetic."""
    from vtsim.traces.export import check_target, export
    from vtsim.traces.generate import AZURE_LIKE_OUTPUT, AZURE_LIKE_PROMPT, Synth, generate
    from vtsim.traces.lengths import Lengths
    from vtsim.traces.output import check_writable

    check_writable(out)
    target = check_target(to, out)
    prompts = AZURE_LIKE_PROMPT if prompt is None else Lengths.of(prompt)
    outputs = AZURE_LIKE_OUTPUT if output is None else Lengths.of(output)
    if lengths_from is not None:
        keep(lengths_from, "OUT", out)
        if prompt is not None or output is not None:
            raise ConfigError("--lengths-from stands beside --prompt or --output: one of them")
        prompts, outputs = Lengths.of_trace(lengths_from)
    options: dict[str, Any] = {"rate": rate, "arrival": arrival, "cv": cv, "period_s": period}
    options |= {"depth": depth, "turns": turns, "max_context": max_context, "think_s": think}
    options |= {"seconds_per_token": seconds_per_token, "block_size": block_size}
    options |= {"system_prompts": system_prompts, "system_tokens": system_tokens}
    trace = generate(Synth(requests, seed, prompt=prompts, output=outputs, **options))
    lost = export(trace, out, target)
    if not quiet:
        print(f"wrote {len(trace)} synthetic requests to {out} ({target})", file=sys.stderr)
        for line in trace.report.warnings:
            print(f"warning: {line}", file=sys.stderr)
        for line in lost:
            print(f"not kept by {target}: {line}", file=sys.stderr)


def _say_rows(trace: Trace) -> None:
    """Rows read = kept + dropped by reason, and the warnings, on standard error."""
    from vtsim.traces.stats import rows_text, warnings

    print(rows_text(trace), file=sys.stderr)
    for line in warnings(trace):
        print(f"warning: {line}", file=sys.stderr)
