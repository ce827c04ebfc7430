"""What each known model would need on the GPU of a replay, as a second tenant."""

from __future__ import annotations

from vtsim.backends.sim import CostModel
from vtsim.errors import ConfigError
from vtsim.report.second import Need
from vtsim.runs import Replay
from vtsim.spec import models


def model_needs(replay: Replay) -> tuple[Need, ...]:
    """Weights, workspace and context of each known model that `tp` divides, and KV memory of one
    sequence: of the replay's `max_model_len` where one was asked for and the model has as many
    positions, else of all its positions."""
    options, gpu, tp = replay.options, replay.gpu, replay.tp
    needs = []
    for name, shape in models().items():
        model = shape.with_kv_dtype(options.kv_dtype)
        try:
            model.check_tp(tp)
        except ConfigError:
            continue
        tokens = min(model.max_positions, options.max_model_len or model.max_positions)
        workspace = CostModel(model, gpu, tp).workspace_bytes(
            options.max_batched_tokens, options.max_num_seqs
        )
        fixed = model.weight_bytes(tp) + workspace + gpu.context_bytes
        needs.append(
            Need(name, model.weight_bytes(tp), fixed + tokens * model.token_bytes(tp), tokens)
        )
    return tuple(needs)
