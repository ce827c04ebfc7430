"""CostModel: how long a step takes on a GPU profile, as a sum of per-kernel maxima.

Each kernel costs the slower of its memory traffic and its arithmetic; kernels run one after
another, so the maxima are summed (a maximum of sums would hide the memory-bound ones). Coefficients
are rounded to ticks once; from there on everything is integer, so that
`step(StepShape(B, kv + j * B)) == affine(B, kv).first + j * affine(B, kv).slope` exactly.
docs/costs.md compares it with measurements.
"""

from __future__ import annotations

from collections.abc import Mapping

from vtsim.backends.sim.kernels import (
    SCALE_BITS,
    decode_rate,
    kernel_choice,
    prefill_rate,
    ticks_for,
)
from vtsim.ports import Affine, StepShape
from vtsim.request import Tick
from vtsim.spec import GpuSpec, Linear, ModelSpec

FOREVER = 1 << 62
ELEMENTWISE_KERNELS = 4
"""A layer's: two norms with residual, rotary embedding with cache write, activation."""
SAMPLER_PASSES = 3
"""Times the float32 logits are read or written by the sampler."""
LIBRARY_BYTES = 64 << 20
"""Workspaces of cuBLAS and of split-KV attention, held from the start."""


_new = tuple.__new__  # a NamedTuple's own is a Python function: this one is asked in every decision


class CostModel:
    """An `Executor` that computes nothing and knows the time of everything.

    `kernel` is a name of `vtsim.backends.sim.kernels`. Raises ConfigError for a bad tp or kernel.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, tp: int = 1, kernel: str = "flash") -> None:
        model.check_tp(tp)
        self.model, self.gpu, self.tp, self.kernel = model, gpu, tp, kernel
        choice = kernel_choice(gpu, kernel)
        self.families = choice
        self._attend = decode_rate(model, gpu, tp, choice.decode)
        self._prefill = prefill_rate(model, gpu, tp, choice.prefill)
        self._slope = self._attend.per_kv_token
        self._layer_linears = model.layer_linears(tp)
        self._head = model.head_linear(tp)
        self._streams = [(linear, self._stream(linear)) for linear in self._layer_linears]
        # What depends on the shape through small integers only, filled on first use.
        self._by_tokens: dict[int, Tick] = {0: 0}
        self._by_sequences: dict[int, Tick] = {0: 0}
        self._by_decoding: dict[int, Tick] = {0: 0}

    def step(self, shape: StepShape) -> Tick:
        """Ticks of one step; 0 for a step with nothing in it."""
        decoding, kv_tokens, chunks = shape
        if not chunks:
            fixed = self._by_decoding.get(decoding)
            if fixed is None:
                fixed = self._decode_fixed(decoding)
            return fixed + self._slope * kv_tokens
        tokens = decoding
        total, per_pair, per_square, per_kv = self._prefill
        for new, before in chunks:  # PrefillRate.chunk, inlined: this loop is hot
            tokens += new
            compute = new * (before * per_pair + new * per_square)
            memory = (new + before) * per_kv
            total += (compute if compute > memory else memory) >> SCALE_BITS
        sequences = decoding + len(chunks)
        by_tokens = self._by_tokens.get(tokens)
        if by_tokens is None:
            by_tokens = self._tokens_ticks(tokens)
        by_sequences = self._by_sequences.get(sequences)
        if by_sequences is None:
            by_sequences = self._sequences_ticks(sequences)
        if decoding:
            total += self._attend.fixed + self._slope * kv_tokens
        return total + by_tokens + by_sequences

    def affine(self, decoding: int, kv_tokens: int) -> Affine:
        """Closed form of the decode steps from here on: it never ends by itself."""
        fixed = self._by_decoding.get(decoding)
        if fixed is None:
            fixed = self._decode_fixed(decoding)
        slope = self._slope
        return _new(Affine, (fixed + slope * kv_tokens, slope * decoding, FOREVER))

    def breakdown(self, shape: StepShape) -> Mapping[str, Tick]:
        """The step's ticks by kernel, in the order they are summed: adds up to `step(shape)`."""
        decoding, kv_tokens, chunks = shape
        tokens = decoding + sum(new for new, _ in chunks)
        sequences = decoding + len(chunks)
        if not sequences:
            return {}
        parts = {"linear": self._linear(tokens), "elementwise": self._elementwise(tokens)}
        if self.tp > 1:
            parts["all_reduce"] = self._all_reduce(tokens)
        if decoding:
            parts["attention_decode"] = self._attend.fixed + self._slope * kv_tokens
        if chunks:
            parts["attention_prefill"] = self._prefill.fixed + sum(
                self._prefill.chunk(new, before) for new, before in chunks
            )
        parts["head"] = self._matrix(self._head, sequences)
        parts["sampler"] = self._sampler(sequences)
        parts["host"] = self._host(sequences)
        return parts

    def workspace_bytes(self, max_batched_tokens: int, max_num_seqs: int = 256) -> int:
        """Bytes that a step of so many tokens needs beside weights and KV: activations alive at
        once in the widest part of a layer, logits, libraries. Rounded up to 2 MiB."""
        model, tp = self.model, self.tp
        qkv, out, gate_up, _ = self._layer_linears
        attention = qkv.rows + out.columns
        feed_forward = gate_up.rows + gate_up.rows // 2
        width = 3 * model.hidden + max(attention, feed_forward)
        activations = max_batched_tokens * width * model.dtype_bytes
        logits = 2 * max_num_seqs * self._head.rows * tp * 4
        return -(-(activations + logits + LIBRARY_BYTES) // (2 << 20)) * (2 << 20)

    def _decode_fixed(self, decoding: int) -> Tick:
        ticks = self._attend.fixed + self._tokens_ticks(decoding) + self._sequences_ticks(decoding)
        self._by_decoding[decoding] = ticks
        return ticks

    def _tokens_ticks(self, tokens: int) -> Tick:
        """What depends on the tokens in the step, whoever they belong to."""
        ticks = self._linear(tokens) + self._elementwise(tokens)
        if self.tp > 1:
            ticks += self._all_reduce(tokens)
        self._by_tokens[tokens] = ticks
        return ticks

    def _sequences_ticks(self, sequences: int) -> Tick:
        """What depends on the sequences in the step: logits are computed for last tokens only."""
        ticks = (
            self._matrix(self._head, sequences) + self._sampler(sequences) + self._host(sequences)
        )
        self._by_sequences[sequences] = ticks
        return ticks

    def _linear(self, tokens: int) -> Tick:
        rate = self.gpu.bf16_flops_per_s * self._efficiency(tokens)
        one = 0
        for linear, least in self._streams:
            compute = ticks_for(2 * linear.parameters * tokens, rate)
            one += compute if compute > least else least
        return self.model.layers * (one + len(self._streams) * self.gpu.linear.kernel)

    def _matrix(self, linear: Linear, tokens: int) -> Tick:
        rate = self.gpu.bf16_flops_per_s * self._efficiency(tokens)
        compute = ticks_for(2 * linear.parameters * tokens, rate)
        return self.gpu.linear.kernel + max(self._stream(linear), compute)

    def _stream(self, linear: Linear) -> Tick:
        """Reading its weights once."""
        nbytes = linear.parameters * self.model.dtype_bytes
        return ticks_for(nbytes, self.gpu.linear.weight_bytes_per_s)

    def _efficiency(self, tokens: int) -> float:
        points, shares = self.gpu.linear.tokens, self.gpu.linear.efficiency
        if tokens <= points[0]:
            return shares[0] * tokens / points[0]
        for i in range(1, len(points)):
            if tokens <= points[i]:
                part = (tokens - points[i - 1]) / (points[i] - points[i - 1])
                return shares[i - 1] + part * (shares[i] - shares[i - 1])
        return shares[-1]

    def _elementwise(self, tokens: int) -> Tick:
        """Reads and writes: two norms (residual in and out), rotary embedding, KV write, gated
        activation; and the embedding's rows."""
        model, costs = self.model, self.gpu.elementwise
        qkv, _, gate_up, _ = self._layer_linears
        values = 8 * model.hidden + 2 * qkv.rows + 3 * (gate_up.rows // 2)
        layer = tokens * (values * model.dtype_bytes + model.token_bytes(self.tp) // model.layers)
        embedding = 2 * tokens * model.hidden * model.dtype_bytes
        launches = (ELEMENTWISE_KERNELS * model.layers + 1) * costs.kernel
        return launches + ticks_for(model.layers * layer + embedding, costs.bytes_per_s)

    def _all_reduce(self, tokens: int) -> Tick:
        """Two a layer, as rings: each GPU sends 2 (tp - 1) / tp of the activations."""
        links, tp = self.gpu.links, self.tp
        nbytes = 2 * (tp - 1) * tokens * self.model.hidden * self.model.dtype_bytes / tp
        one = links.peer_latency + ticks_for(nbytes, links.peer_bytes_per_s)
        return 2 * self.model.layers * one

    def _sampler(self, sequences: int) -> Tick:
        nbytes = SAMPLER_PASSES * 4 * sequences * self.model.vocab
        return ticks_for(nbytes, self.gpu.elementwise.bytes_per_s)

    def _host(self, sequences: int) -> Tick:
        return self.gpu.host.per_step + sequences * self.gpu.host.per_sequence
