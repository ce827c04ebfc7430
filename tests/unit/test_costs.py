"""Cost models: exact integers, each trap of DESIGN 9, and FACTS' measurements."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtsim.backends.gpus import load_gpu
from vtsim.backends.sim.costs import FOREVER, CostModel
from vtsim.backends.sim.kernels import decode_rate, kernel_choice, kernel_names, prefill_rate
from vtsim.backends.sim.times import VmmTimes, allocation_ticks, call_costs
from vtsim.errors import ConfigError
from vtsim.plan import KINDS, OpKind
from vtsim.ports import Executor, MemoryTimes, StepShape
from vtsim.spec import ModelSpec, models

US = 10**6
MS = 10**9
S = 10**12
MIB = 1 << 20
YI = models()["yi-6b"]
H200 = load_gpu("h200")
A100 = load_gpu("a100-80g")


def one_layer(kv_heads: int) -> ModelSpec:
    """FACTS' kernel table: 32 query heads, head size 128."""
    return ModelSpec("kernel", 1, 4096, 32, kv_heads, 128, 11008, 64000, 65536)


def test_release_costs_by_the_byte_where_sizes_are_mixed() -> None:
    """On the line between 17 us for 2 MiB and 57 us for 64 MiB, however the bytes are divided."""
    times = VmmTimes(H200, 2 * MIB, max_chunk_bytes=64 * MIB)
    for size in (2, 4, 8, 16, 32, 64):
        one = VmmTimes(H200, size * MIB).counts(counts(DESTROY=1), 0, 0, 0)
        mixed = times.counts(counts(DESTROY=1), 0, 0, 0) + times.larger((size - 2) * MIB)
        assert abs(one - mixed) <= 1
    many = times.counts(counts(DESTROY=3), 0, 0, 0) + times.larger((4 + 64 + 64 - 6) * MIB)
    assert many == 3 * 17_000_000 + 126 * 40_000_000 // 62
    for kind in ("CREATE", "MAP", "UNMAP"):
        plain = VmmTimes(H200, 2 * MIB).counts(counts(**{kind: 7}), 0, 0, 0)
        assert times.counts(counts(**{kind: 7}), 0, 0, 0) == plain
    assert VmmTimes(H200, 2 * MIB).larger(10**9) == 0
    assert VmmTimes(A100, 2 * MIB, max_chunk_bytes=64 * MIB).larger(10**9) == 0


def counts(**by_kind: int) -> list[int]:
    row = [0] * KINDS
    for kind, count in by_kind.items():
        row[OpKind[kind]] = count
    return row


class TestExactness:
    @given(
        decoding=st.integers(1, 300),
        kv_tokens=st.integers(1, 10**7),
        j=st.integers(0, 10**5),
        kernel=st.sampled_from(["flash", "flash_paged", "paged_v2"]),
        tp=st.sampled_from([1, 2, 8]),
    )
    def test_affine_is_the_steps_bit_by_bit(
        self, decoding: int, kv_tokens: int, j: int, kernel: str, tp: int
    ) -> None:
        cost = CostModel(YI, A100, tp, kernel)
        first, slope, until = cost.affine(decoding, kv_tokens)
        assert cost.step(StepShape(decoding, kv_tokens + j * decoding)) == first + j * slope
        assert until == FOREVER
        assert type(first) is int and type(slope) is int

    @given(
        decoding=st.integers(0, 50),
        kv_tokens=st.integers(0, 10**6),
        chunks=st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 10**5)), max_size=4),
        tp=st.sampled_from([1, 2]),
    )
    def test_the_breakdown_adds_up(
        self, decoding: int, kv_tokens: int, chunks: list[tuple[int, int]], tp: int
    ) -> None:
        cost = CostModel(YI, H200, tp)
        shape = StepShape(decoding, kv_tokens if decoding else 0, tuple(chunks))
        assert sum(cost.breakdown(shape).values()) == cost.step(shape)
        assert cost.step(shape) == cost.step(shape) == CostModel(YI, H200, tp).step(shape)

    def test_a_step_with_nothing_in_it_costs_nothing(self) -> None:
        assert CostModel(YI, H200).step(StepShape(0, 0)) == 0

    def test_is_an_executor(self) -> None:
        executor: Executor = CostModel(YI, H200)
        assert executor.step(StepShape(1, 1)) > 0


class TestTraps:
    def test_the_embedding_is_not_streamed(self) -> None:
        wide = replace(YI, tied_embeddings=True)
        shape = StepShape(1, 1024)
        assert CostModel(wide, H200).step(shape) == CostModel(YI, H200).step(shape)

    def test_weights_are_streamed_once_whoever_is_in_the_step(self) -> None:
        cost = CostModel(YI, H200)
        one, many = cost.breakdown(StepShape(1, 9)), cost.breakdown(StepShape(64, 64))
        assert one["linear"] == many["linear"]
        stream = YI.streamed_weight_bytes(1) / H200.linear.weight_bytes_per_s * S
        parts = cost.breakdown(StepShape(1, 9))
        kernels = (4 * YI.layers + 1) * H200.linear.kernel
        assert parts["linear"] + parts["head"] - kernels == pytest.approx(stream, rel=1e-3)

    def test_a_chunk_attends_c_times_p_plus_half_c_pairs(self) -> None:
        rate = prefill_rate(YI, H200, 1, "flash")
        pairs = 2048 * (14336 + 1024)
        flops = 4 * 32 * 128 * 32 * pairs
        ticks = rate.chunk(2048, 14336)
        assert flops / 671e12 * S < ticks < flops / 647e12 * S
        # Two chunks attend what one of both sizes attends.
        whole = rate.chunk(4096, 0)
        assert rate.chunk(2048, 0) + rate.chunk(2048, 2048) == pytest.approx(whole, rel=0.02)

    def test_a_tiny_chunk_on_a_long_prefix_reads_its_kv(self) -> None:
        ticks = prefill_rate(YI, H200, 1, "flash").chunk(1, 100_000)
        assert ticks == pytest.approx(100_001 * 65536 / 4.42e12 * S, rel=1e-6)

    def test_logits_are_of_last_tokens_only(self) -> None:
        cost = CostModel(YI, H200)
        one = cost.breakdown(StepShape(0, 0, ((8192, 0),)))
        assert one["head"] == cost.breakdown(StepShape(1, 1))["head"]
        mixed = cost.breakdown(StepShape(3, 30, ((8192, 0), (5, 8))))
        assert mixed["head"] == cost.breakdown(StepShape(5, 50))["head"]

    def test_maxima_are_taken_a_kernel_not_a_step(self) -> None:
        """A step bound by compute in its linears still waits for its KV reads."""
        cost = CostModel(YI, H200)
        alone = cost.step(StepShape(0, 0, ((4096, 0),)))
        both = cost.step(StepShape(1, 200_000, ((4095, 0),)))
        assert both - alone > 200_000 * 65536 / 4.42e12 * S * 0.9

    def test_all_reduce_only_under_tensor_parallelism(self) -> None:
        shape = StepShape(64, 64_000)
        assert "all_reduce" not in CostModel(YI, H200, 1).breakdown(shape)
        two = CostModel(YI, H200, 2).breakdown(shape)["all_reduce"]
        each = H200.links.peer_latency + round(64 * 4096 * 2 / 450e9 * S)
        assert two == 64 * each

    def test_tensor_parallelism_shortens_a_loaded_step(self) -> None:
        shape = StepShape(64, 640_000, ((4096, 0),))
        assert CostModel(YI, H200, 2).step(shape) < CostModel(YI, H200, 1).step(shape)

    def test_efficiency_never_makes_more_tokens_cheaper(self) -> None:
        for gpu in (H200, A100):
            cost = CostModel(YI, gpu)
            sizes = [1, 7, 16, 17, 63, 64, 65, 127, 128, 129, 200, 256, 1000, 2048, 8192, 16384]
            linear = [cost.breakdown(StepShape(0, 0, ((n, 0),)))["linear"] for n in sizes]
            assert linear == sorted(linear)

    def test_workspace_grows_with_the_step_and_is_whole_chunks(self) -> None:
        cost = CostModel(YI, A100)
        small, large = cost.workspace_bytes(2048), cost.workspace_bytes(8192)
        assert small < large and small % (2 * MIB) == 0 == large % (2 * MIB)
        assert 0.7e9 < large < 1.3e9

    def test_bad_tp_and_kernel(self) -> None:
        with pytest.raises(ConfigError, match="cannot be cut for tp 3"):
            CostModel(YI, H200, 3)
        with pytest.raises(ConfigError, match="unknown kernel 'x' on h200: use one of flash, fla"):
            CostModel(YI, H200, 1, "x")


class TestKernels:
    def test_names_map_to_families(self) -> None:
        assert kernel_choice(H200, "paged_v2") == ("triton_prefix", "paged_cuda")
        assert kernel_choice(H200, "flash") == ("flash", "flash")

    def test_a_family_of_both_kinds_in_a_profile_is_a_kernel(self) -> None:
        own = replace(
            H200,
            decode={"mine": H200.decode["flash"]},
            prefill={"mine": H200.prefill["flash"]},
        )
        assert kernel_names(own) == ["mine"]
        assert CostModel(YI, own, 1, "mine").step(StepShape(2, 9)) == CostModel(YI, H200).step(
            StepShape(2, 9)
        )

    def test_paged_attention_on_an_a100_is_capped_at_3_6_tflops(self) -> None:
        rate = decode_rate(YI, A100, 1, "paged_cuda")
        flops_per_token = 4 * 32 * 128 * 32
        assert flops_per_token / rate.per_kv_token == pytest.approx(3.6, rel=1e-3)
        # With as many KV heads as query heads it is bound by memory, close to flash (1.03x).
        mha = one_layer(32)
        paged, flash = (decode_rate(mha, A100, 1, name) for name in ("paged_cuda", "flash"))
        assert 1.02 < paged.per_kv_token / flash.per_kv_token < 1.05

    def test_one_kv_head_on_an_a100_reaches_the_papers_7_58x(self) -> None:
        mqa = one_layer(1)
        paged, flash = (decode_rate(mqa, A100, 1, name) for name in ("paged_cuda", "flash"))
        assert paged.per_kv_token / flash.per_kv_token == pytest.approx(7.58, rel=0.01)


class TestAgainstFacts:
    """FACTS' H200 tables; the tolerated error is the one docs/costs.md states."""

    @pytest.mark.parametrize(
        ("family", "batch", "length", "kv_heads", "us", "error"),
        [
            ("flash", 16, 16384, 4, 136, 0.02),
            ("flash", 64, 16384, 4, 500, 0.02),
            ("flash", 4, 16384, 4, 45, 0.05),
            ("flash", 1, 16384, 4, 25, 0.15),
            ("flash", 16, 8192, 4, 75, 0.05),
            ("flash", 16, 4096, 4, 45, 0.05),
            ("flash", 16, 32768, 4, 258, 0.02),
            ("flash", 16, 16384, 32, 970, 0.03),
            ("flash", 16, 16384, 8, 259, 0.02),
            ("flash", 16, 16384, 1, 47, 0.1),
            ("flash_paged", 16, 16384, 4, 138, 0.02),
            ("flash_paged", 64, 16384, 4, 502, 0.02),
            ("flash_paged", 4, 16384, 4, 46, 0.05),
            ("flash_paged", 16, 32768, 4, 259, 0.02),
            ("flash_paged", 16, 16384, 32, 972, 0.03),
            ("paged_cuda", 64, 16384, 4, 3211, 0.02),
            ("paged_cuda", 16, 16384, 4, 835, 0.02),
            ("paged_cuda", 4, 16384, 4, 240, 0.02),
            ("paged_cuda", 1, 16384, 4, 80, 0.17),
            ("paged_cuda", 16, 1024, 4, 79, 0.18),
            ("paged_cuda", 16, 4096, 4, 238, 0.02),
            ("paged_cuda", 16, 32768, 4, 1630, 0.02),
            ("paged_cuda", 16, 16384, 32, 1164, 0.02),
            ("paged_cuda", 16, 16384, 1, 808, 0.04),
        ],
    )
    def test_decode_attention(
        self, family: str, batch: int, length: int, kv_heads: int, us: int, error: float
    ) -> None:
        rate = decode_rate(one_layer(kv_heads), H200, 1, family)
        ticks = rate.fixed + batch * length * rate.per_kv_token
        assert ticks / US == pytest.approx(us, rel=error)

    @pytest.mark.parametrize(
        ("family", "new", "prefix", "tflops"),
        [
            ("flash", 8192, 8192, 656),
            ("flash", 2048, 14336, 669),
            ("flash", 12288, 4096, 653),
            ("flash", 16384, 0, 647),
            ("flash_paged", 8192, 8192, 600),
            ("flash_paged", 16384, 0, 587),
            ("triton_prefix", 8192, 8192, 157),
            ("triton_prefix", 2048, 14336, 144),
            ("triton_prefix", 12288, 4096, 170),
            ("triton_prefix", 16384, 0, 198),
        ],
    )
    def test_prefix_prefill(self, family: str, new: int, prefix: int, tflops: int) -> None:
        ticks = prefill_rate(one_layer(4), H200, 1, family).chunk(new, prefix)
        flops = 4 * 32 * 128 * new * (prefix + new / 2)
        assert flops / ticks == pytest.approx(tflops, rel=0.02)

    @pytest.mark.parametrize(
        ("batch", "prompt", "ms"),
        [
            (1, 1024, 4.25),
            (8, 1024, 4.48),
            (32, 1024, 4.96),
            (64, 1024, 5.81),
            (128, 1024, 7.60),
            (256, 1024, 12.16),
            (64, 7168, 11.82),
        ],
    )
    def test_decode_step_of_vllm(self, batch: int, prompt: int, ms: float) -> None:
        kv_tokens = batch * (prompt + 256)
        ticks = CostModel(YI, H200, 1, "flash_paged").step(StepShape(batch, kv_tokens))
        assert ticks / MS == pytest.approx(ms, rel=0.03)

    @pytest.mark.parametrize(
        ("requests", "prompt", "seconds"),
        [(64, 1024, 1.217), (256, 1024, 4.923), (64, 7168, 9.726)],
    )
    def test_prefill_of_vllm(self, requests: int, prompt: int, seconds: float) -> None:
        cost = CostModel(YI, H200, 1, "flash_paged")
        at_once = 16384 // prompt
        step = cost.step(StepShape(0, 0, ((prompt, 0),) * at_once))
        assert step * (requests / at_once) / S == pytest.approx(seconds, rel=0.05)

    @pytest.mark.parametrize(("tokens", "us"), [(64, 53), (256, 73), (2048, 540), (8192, 2163)])
    def test_linear_layers(self, tokens: int, us: int) -> None:
        model = ModelSpec("ffn", 1, 4096, 32, 4, 128, 11008, 64000, 65536)
        cost = CostModel(model, H200)
        ticks = cost._matrix(model.layer_linears(1)[2], tokens)
        assert ticks / US == pytest.approx(us, rel=0.07)


class TestVmmTimes:
    def test_a_map_is_a_map_and_an_access(self) -> None:
        times: MemoryTimes = VmmTimes(H200, 2 * MIB)
        assert times.counts(counts(MAP=3), 0, 0, 0) == 3 * 39 * US
        assert not times.random

    def test_every_kind_has_its_price(self) -> None:
        times = VmmTimes(A100, 2 * MIB)
        row = counts(RESERVE=1, FREE=1, CREATE=2, DESTROY=3, MAP=4, UNMAP=5)
        assert times.counts(row, 0, 0, 0) == (2 + 1 + 58 + 69 + 160 + 170) * US

    def test_cost_is_per_handle_and_release_grows_with_size(self) -> None:
        small, large = call_costs(H200, 2 * MIB), call_costs(H200, 64 * MIB)
        assert small.create == large.create and small.map == large.map
        assert (small.release.median, large.release.median) == (17 * US, 57 * US)
        assert 17 * US < call_costs(H200, 16 * MIB).release.median < 57 * US
        assert call_costs(H200, 1024 * MIB) == large

    def test_small_pages_have_their_own_table(self) -> None:
        costs = call_costs(A100, 64 << 10)
        assert (costs.create.median, costs.map.median) == (1_700_000, 8_000_000)
        assert costs.set_access.median == 0
        assert call_costs(A100, 4 << 10) == costs

    @pytest.mark.parametrize(
        ("nbytes", "allocate", "free"),
        [(1, 44, 36), (2 * MIB, 44, 36), (64 * MIB, 57, 91), (1 << 30, 117, 604)],
    )
    def test_ordinary_allocation_by_size(self, nbytes: int, allocate: int, free: int) -> None:
        assert allocation_ticks(H200.allocation, nbytes) == (allocate * US, free * US)
        row = counts(ALLOCATE=2, DEALLOCATE=1)
        assert VmmTimes(H200, 2 * MIB).counts(row, nbytes, 0, 0) == (2 * allocate + free) * US

    def test_allocation_between_and_beyond_the_points(self) -> None:
        low, _ = allocation_ticks(H200.allocation, 512 * MIB)
        assert 57 * US < low < 117 * US
        beyond, _ = allocation_ticks(H200.allocation, 64 << 30)
        assert beyond == pytest.approx((623 + 506 * 8) * US, rel=0.01)

    def test_copies_read_and_write_and_swaps_cross_the_link(self) -> None:
        times = VmmTimes(H200, 2 * MIB)
        assert times.counts(counts(COPY=1), 0, MIB, 0) == round(2 * MIB / 4.25e12 * S)
        assert times.counts(counts(SWAP_OUT=1), 0, 0, MIB) == round(MIB / 50e9 * S)

    def test_the_tail_is_seeded_and_keeps_median_and_p99(self) -> None:
        row = counts(CREATE=1)
        draw = VmmTimes(H200, 2 * MIB, tail=7)
        drawn = [draw.counts(row, 0, 0, 0) for _ in range(20_000)]
        again = VmmTimes(H200, 2 * MIB, tail=7)
        assert drawn[:50] == [again.counts(row, 0, 0, 0) for _ in range(50)]
        other = VmmTimes(H200, 2 * MIB, tail=8)
        assert drawn[:50] != [other.counts(row, 0, 0, 0) for _ in range(50)]
        drawn.sort()
        assert drawn[10_000] / US == pytest.approx(14.5, rel=0.02)
        assert drawn[19_800] / US == pytest.approx(33.0, rel=0.06)
        assert draw.random

    def test_without_published_tails_a_seed_changes_nothing(self) -> None:
        times = VmmTimes(A100, 2 * MIB, tail=1)
        assert not times.random
        assert times.counts(counts(CREATE=4), 0, 0, 0) == 4 * 29 * US
