"""`vtsim replay TRACE`: replay a trace through policies and compare them."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from vtsim.cli.reshaping import with_reader_options
from vtsim.cli.state import Debug
from vtsim.errors import ConfigError
from vtsim.options import Admit, Clock, Overflow, Preemption, ReplayOptions, Victim
from vtsim.quantities import parse_bytes
from vtsim.registry import parse_settings

DEFAULTS = ReplayOptions()


@with_reader_options
def replay(
    trace: Annotated[
        str | None, typer.Argument(help="The trace file; its format is detected.")
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant",
            metavar="NAME:TRACE:MODEL[:LIMIT]",
            help="Instead of TRACE and --model, twice or more: who shares the GPU.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="A policy by name, FILE.py:Class, or LABEL=NAME; repeat it for more. "
            "[default: native, paged, vtensor; of tenants: paged, vtensor]",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="POLICY.PARAM=VALUE", help="A policy's parameter; repeatable."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model by name, or a Hugging Face config.json. [default: yi-6b]"),
    ] = None,
    gpu: Annotated[str, typer.Option(help="A GPU by name, or a profile in TOML.")] = "a100-80g",
    tp: Annotated[int, typer.Option(help="Tensor parallel size; sizes are of one GPU.")] = 1,
    max_num_seqs: Annotated[
        int, typer.Option(help="Sequences that run at once.")
    ] = DEFAULTS.max_num_seqs,
    max_batched_tokens: Annotated[
        int, typer.Option(help="Tokens that one step computes.")
    ] = DEFAULTS.max_batched_tokens,
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Most tokens of a sequence. [default: the model's positions]"),
    ] = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES|unlimited",
            help="Every policy's byte limit. "
            "[default: utilization x capacity - weights - workspace]",
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Another capacity than the GPU's own, such as 40GiB."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the capacity that may be used, weights included.")
    ] = DEFAULTS.gpu_memory_utilization,
    kv_dtype: Annotated[
        str, typer.Option(help="Type of KV cache elements: auto, bf16, fp16, fp8, fp32.")
    ] = DEFAULTS.kv_dtype,
    kernel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[POLICY=]NAME",
            help="Attention kernel family; of one policy, or of all that can use it. "
            "[default: each policy's first]",
        ),
    ] = None,
    speed: Annotated[
        str,
        typer.Option(
            metavar="FACTOR", help="Arrivals, the trace's clock, come this many times as fast."
        ),
    ] = "1",
    limit: Annotated[
        int | None, typer.Option(help="The first requests in order of arrival, in whole sessions.")
    ] = None,
    from_format: Annotated[
        str | None, typer.Option("--from", metavar="FORMAT", help="The trace's format.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens a hash id stands for, where the trace does not say."),
    ] = None,
    on_overflow: Annotated[
        Overflow, typer.Option(help="What becomes of a request over --max-model-len.")
    ] = DEFAULTS.on_overflow,
    admit: Annotated[
        Admit, typer.Option(help="Admit a request when this much of it would fit.")
    ] = DEFAULTS.admit,
    victim: Annotated[
        Victim,
        typer.Option(help="Who is preempted when memory runs short; longest-remaining: an oracle."),
    ] = DEFAULTS.victim,
    preemption: Annotated[
        Preemption, typer.Option(help="Compute a victim's KV again, or swap it to host memory.")
    ] = DEFAULTS.preemption,
    swap_memory: Annotated[
        str, typer.Option(metavar="BYTES", help="Host memory for swapped KV, such as 16GiB.")
    ] = "4GiB",
    seed: Annotated[int, typer.Option(help="Of VMM tail times and of --arrival.")] = DEFAULTS.seed,
    vmm_tail: Annotated[
        bool, typer.Option("--vmm-tail", help="Draw VMM call times with their tail.")
    ] = False,
    num_gpu_blocks: Annotated[
        int | None, typer.Option(help="A measured size of the paged pool, in blocks.")
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Never leap over decode steps (slower, equal).")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Keep every memory operation; needs --out.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check every invariant after every step (slower).")
    ] = False,
    memory: Annotated[
        str, typer.Option(metavar="NAME", help="What executes the plans: sim, or cuda (a card).")
    ] = DEFAULTS.memory,
    clock: Annotated[
        Clock, typer.Option(help="Whose times rule: virtual is the model's.")
    ] = DEFAULTS.clock,
    fail_at: Annotated[
        int | None, typer.Option(help="Make the driver refuse this memory operation once.")
    ] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the JSON document; - is stdout."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write all tables, as CSV and Parquet."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")] = False,
    debug: Debug = False,
    *,
    reader: dict[str, Any],
) -> None:
    """Replay a request trace through memory policies on a simulated GPU, and compare them."""
    from vtsim.api import DEFAULT_MODEL, DEFAULT_POLICIES, prepare
    from vtsim.cli import heading, tenants
    from vtsim.cli.console import console, progress_bar
    from vtsim.metrics import output
    from vtsim.metrics.result import RESULT_FILE
    from vtsim.report import second, table
    from vtsim.tenants.beside import model_needs

    sharing = tenants.parse(tenant, trace, model)
    _check_targets(
        [trace or ""] if sharing is None else [str(each.trace) for each in sharing], json, out
    )
    for each in sharing or ():
        if out is not None:
            output.check_folder(os.path.join(out, each.name), RESULT_FILE)
    if log and out is None:
        raise typer.BadParameter("--log needs --out DIR to write to")
    options: dict[str, Any] = dict(
        gpu=gpu,
        tp=tp,
        settings=parse_settings(setting or ()),
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        max_model_len=max_model_len,
        kv_memory=_kv_memory(kv_memory),
        gpu_memory=None if gpu_memory is None else parse_bytes(gpu_memory, "--gpu-memory"),
        gpu_memory_utilization=gpu_memory_utilization,
        kv_dtype=kv_dtype,
        kernel=_kernel(kernel),
        speed=speed,
        limit=limit,
        from_format=from_format,
        block_size=block_size,
        reader=reader,
        on_overflow=on_overflow,
        admit=admit,
        victim=victim,
        preemption=preemption,
        swap_memory=parse_bytes(swap_memory, "--swap-memory"),
        seed=seed,
        vmm_tail=vmm_tail,
        num_gpu_blocks=num_gpu_blocks,
        step=step,
        log=log,
        check=check,
        decisions=out is not None,
        memory=memory,
        clock=clock,
        fail_at=fail_at,
    )
    screen = console(to_stderr=json is not None and output.is_stdout(json))
    wanted = not quiet
    if sharing is not None:
        with progress_bar(wanted) as progress:
            shared = tenants.run(
                sharing, policy, options, screen if wanted else None, progress, verbose
            )
        tenants.write(shared, json, out, screen if wanted else None, verbose)
        return
    named = model or DEFAULT_MODEL
    replayed = prepare(trace or "", policy or DEFAULT_POLICIES, model=named, **options)
    if wanted:
        for line in heading.lines(replayed, screen.width, verbose, named, gpu):
            screen.print(line, markup=False)
    with progress_bar(wanted) as progress:
        result = replayed.run(progress)
    if out is not None:
        result.save(out)
    if json is not None:
        result.save_json(json)
    if wanted:
        for part in table.comparison(result, screen.width, verbose):
            screen.print(part, markup=not isinstance(part, str))
        for line in second.lines(result, model_needs(replayed)):
            screen.print(line, markup=False)


def _check_targets(traces: list[str], json: str | None, out: str | None) -> None:
    """Every place that will be written to, before anything runs."""
    from vtsim.metrics import output
    from vtsim.metrics.result import RESULT_FILE

    if json is not None:
        output.check_file(json)
        if not output.is_stdout(json) and os.path.exists(json):
            if any(os.path.exists(trace) and os.path.samefile(json, trace) for trace in traces):
                raise ConfigError(f"--json {json}: that is the trace itself")
    if out is not None:
        output.check_folder(out, RESULT_FILE)
        if json is not None and os.path.realpath(json) == os.path.realpath(out):
            raise ConfigError(f"--json and --out are both {out}")


def _kv_memory(text: str | None) -> int | Literal["unlimited"] | None:
    if text is None or text == "unlimited":
        return text  # type: ignore[return-value]
    return parse_bytes(text, "--kv-memory")


def _kernel(texts: list[str] | None) -> str | dict[str, str] | None:
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    named = {}
    for text in texts:
        label, equals, name = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"--kernel {text}: several need POLICY=NAME each")
        named[label] = name
    return named
