"""What the experiments share: plans of raw operations, and a backend of one arena."""

from __future__ import annotations

from typing import Any

M, G = 1 << 20, 1 << 30
Report = dict[str, Any]


def plan_of(operations: list[Any], chunk_bytes: int = 0) -> Any:
    from vtsim.plan import Phase, Plan

    plan = Plan(Phase.EXTEND, chunk_bytes=chunk_bytes, operations=tuple(operations))
    for operation in operations:
        plan.counts[operation.kind] += 1
    return plan


def chunk_operations(kind: Any, count: int, nbytes: int, slot: int = -1) -> list[Any]:
    from vtsim.plan import Operation

    where = {} if slot < 0 else {"slot": slot, "arena": 0}
    return [
        Operation(kind, chunk=n, nbytes=nbytes, index=n if where else -1, **where)
        for n in range(count)
    ]


def one_arena(max_chunks: int, chunk_bytes: int = 2 * M, **options: Any) -> Any:
    """A backend of one arena whose slots hold `max_chunks` chunks, the arena reserved."""
    from vtsim.backends.cuda.backend import CudaBackend
    from vtsim.plan import Operation, OpKind
    from vtsim.spec import KVLayout

    kv = KVLayout("token_major", 1, 65536, chunk_bytes, max_chunks * chunk_bytes // 65536)
    backend = CudaBackend(None, kv, keep_log=False, **options)
    arena = Operation(OpKind.RESERVE, arena=0, nbytes=4 * kv.slot_stride_bytes)
    assert backend.execute(plan_of([arena]), 0).done
    return backend


def spread_of(spread: Any) -> Report:
    return {"p50": round(spread.p50, 2), "p99": round(spread.p99, 2), "count": spread.count}
