"""vTensors hold the right bytes through every change: on the fake's real bytes, and on a card."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vtsim.backends.cuda.driver import CudaDriver  # noqa: E402
from vtsim.backends.cuda.fake import FakeCuda  # noqa: E402
from vtsim.backends.cuda.tensors import KVShape  # noqa: E402
from vtsim.backends.cuda.vtensor import VTensor, VTensorPool  # noqa: E402
from vtsim.errors import CapacityError, ConfigError, InvariantError  # noqa: E402

M = 1 << 20
SHAPE = KVShape(layers=3, kv_heads=2, head_dim=64, dtype=torch.float32)
"""3,072 B a token, 512 B a row in one arena of per_layer: a 2 MiB chunk holds 682.67 tokens."""
LAYOUTS = ("token_major", "kv_split", "per_layer")
GROWING = tuple(f"{layout}, growing" for layout in LAYOUTS)
"""Chunks of 2, 4, 4, 8, ... MiB."""
Make = Callable[..., VTensorPool]


@pytest.fixture
def make(device: CudaDriver) -> Iterator[Make]:
    pools: list[VTensorPool] = []

    def pool(**options: Any) -> VTensorPool:
        options = {"max_tokens": 6000, "slots": 6, "poison": True, **options}
        if options.get("layout") in GROWING:
            options["layout"] = options["layout"].split(",")[0]
            options |= {"max_chunk_bytes": 8 * M, "growth": 4}
        pools.append(VTensorPool(SHAPE, driver=device, **options))
        return pools[-1]

    yield pool
    gc.collect()
    for made in pools:
        made.close()


def pattern(seed: int, start: int, end: int, device: Any) -> Any:
    """[tokens, H, D]: every element tells seed and token."""
    rows = torch.arange(start, end, device=device, dtype=torch.float32)
    column = torch.arange(SHAPE.head_dim, device=device, dtype=torch.float32) / 128
    heads = torch.arange(SHAPE.kv_heads, device=device, dtype=torch.float32) / 4
    return seed * 10_000 + rows[:, None, None] + heads[None, :, None] + column[None, None, :]


def write(vtensor: VTensor, seed: int, start: int = 0) -> None:
    for layer in range(SHAPE.layers):
        values = pattern(seed + layer, start, vtensor.tokens, vtensor.pool.device)
        vtensor.key(layer)[start:].copy_(values)
        vtensor.value(layer)[start:].copy_(-values)


def check(vtensor: VTensor, seed: int, start: int = 0, end: int | None = None) -> None:
    """Rows start to end of every layer, K and V, are `seed`'s."""
    end = vtensor.tokens if end is None else end
    for layer in range(SHAPE.layers):
        values = pattern(seed + layer, start, end, vtensor.pool.device)
        assert torch.equal(vtensor.key(layer)[start:end], values)
        assert torch.equal(vtensor.value(layer)[start:end], -values)


@pytest.mark.parametrize("layout", LAYOUTS + GROWING)
class TestBytes:
    def test_what_was_written_stays_as_it_grows(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        first, second = pool.create(100), pool.create(1)
        write(first, 1)
        write(second, 2)
        for tokens in (1, 599, 1500, 7):
            start = first.tokens
            first.extend(tokens)
            write(first, 1, start)
            start = second.tokens
            second.extend(tokens + 1)
            write(second, 2, start)
        check(first, 1)
        check(second, 2)

    def test_successors_of_one_prefix_never_see_each_other(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        source = pool.create(2000)
        write(source, 1)
        one, two = pool.fork(source, 1700), pool.fork(source, 1700)
        assert one.shared == two.shared == pool.kv.full_units(1700)
        source.extend(300)
        write(source, 1, 2000)
        for vtensor, seed in ((one, 3), (two, 5)):
            vtensor.extend(900)
            write(vtensor, seed, 1700)
        check(source, 1)
        for vtensor, seed in ((one, 3), (two, 5)):
            check(vtensor, 1, 0, 1700)
            check(vtensor, seed, 1700)
        source.release()
        check(one, 1, 0, 1700)
        one.release()
        check(two, 1, 0, 1700)
        check(two, 5, 1700)

    def test_swap_to_another_slot_and_back(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        first, other = pool.create(1300), pool.create(50)
        write(first, 1)
        write(other, 7)
        slot, held = first.slot, pool.held_bytes
        first.swap_out()
        with pytest.raises(InvariantError):
            first.key(0)
        taken = pool.create(1300)  # in its place, on its chunks
        assert taken.slot == slot and pool.held_bytes == held
        write(taken, 9)
        first.swap_in()
        assert first.slot != slot
        check(first, 1)
        check(taken, 9)
        check(other, 7)
        first.extend(5)
        write(first, 1, 1300)
        check(first, 1)

    def test_poison_never_shows_and_is_there(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        first = pool.create(500)
        write(first, 1)
        first.release()
        second = pool.create(500)  # on the same chunks
        assert torch.isnan(second.key(0)).all() and torch.isnan(second.value(2)).all()
        write(second, 2)
        check(second, 2)

    def test_kernels_take_the_views_as_they_are(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        vtensor = pool.create(900)
        generator = torch.Generator().manual_seed(1)
        shape = (900, SHAPE.kv_heads, SHAPE.head_dim)
        key, value, query = (torch.randn(shape, generator=generator).to(pool.device) for _ in "kvq")
        vtensor.key(1).copy_(key)
        vtensor.value(1).copy_(value)
        attend = torch.nn.functional.scaled_dot_product_attention
        with_views = attend(*(
            t.transpose(0, 1)[None] for t in (query, vtensor.key(1), vtensor.value(1))
        ))  # fmt: skip
        plain = attend(*(t.transpose(0, 1)[None] for t in (query, key, value)))
        torch.testing.assert_close(with_views, plain)

    def test_flat_views_start_slots_at_their_stride(self, make: Make, layout: str) -> None:
        pool = make(layout=layout)
        pool.create(10)
        vtensor = pool.create(40)
        write(vtensor, 4)
        start = vtensor.slot * pool.tensors.slot_tokens
        flat = pool.tensors.flat(1, 1)
        assert torch.equal(flat[start : start + 40], vtensor.value(1))
        assert flat.data_ptr() == pool.tensors.values(1).data_ptr()

    @pytest.mark.parametrize("guard", ["ahead", "alias"])
    def test_rows_behind_the_end_are_readable_and_finite(
        self, make: Make, layout: str, guard: str
    ) -> None:
        if layout in GROWING and guard == "alias":
            with pytest.raises(ConfigError, match="chunks that grow have several sizes: use 'ahea"):
                make(layout=layout, guard=guard, guard_tokens=176)
            return
        pool = make(layout=layout, guard=guard, guard_tokens=176, poison=False)
        vtensor = pool.create(130)
        for tokens in (130, 131, 552, 683, 684, 2000):
            vtensor.extend(tokens - vtensor.tokens)
            write(vtensor, 1)
            behind = pool.tensors.keys(2)[vtensor.slot, tokens : tokens + 176]
            assert torch.isfinite(behind).all()
        check(vtensor, 1)
        again = pool.fork(vtensor, 700)
        write(again, 2, 700)
        assert torch.isfinite(pool.tensors.values(0)[again.slot, 700:876]).all()
        check(again, 1, 0, 700)


class TestMemory:
    def test_adopting_a_parked_one_makes_no_driver_call(self) -> None:
        api = FakeCuda(backed=True)
        driver = CudaDriver(api=api)
        pool = VTensorPool(SHAPE, 6000, slots=6, driver=driver)
        small, large, middle = (pool.create(tokens) for tokens in (600, 5000, 2000))
        slots = [small.slot, large.slot, middle.slot]
        for vtensor in (small, large, middle):
            vtensor.release(park=True)
        calls = {n: c for n, c in api.calls.items() if n.startswith("cuMem")}
        held = pool.held_bytes
        assert pool.parked_bytes == held
        assert pool.create(1900).slot == slots[2]  # the smallest that holds it
        assert pool.create(10).slot == slots[0]
        assert pool.create(0).slot == slots[1]
        assert {n: c for n, c in api.calls.items() if n.startswith("cuMem")} == calls
        assert pool.held_bytes == held and pool.parked_bytes == 0
        pool.close()
        driver.close()
        assert api.leaks() == {}

    def test_what_others_share_is_not_parked(self, make: Make) -> None:
        pool = make()
        source = pool.create(2000)
        write(source, 1)
        fork = pool.fork(source, 1500)
        source.release(park=True)
        assert pool.parked_bytes == 0
        write(pool.create(2000), 2)
        check(fork, 1, 0, 1500)

    def test_the_limit_holds_and_a_refusal_changes_nothing(self, make: Make) -> None:
        pool = make(limit_bytes=8 * M, poison=False)
        first = pool.create(600)
        write(first, 1)
        first.release(park=True)
        second = pool.create(600)
        write(second, 2)
        with pytest.raises(CapacityError, match="2097152 B short of the pool's limit"):
            pool.create(2700)
        with pytest.raises(CapacityError, match="short"):
            second.extend(3000)
        assert second.tokens == 600 and pool.held_bytes == 8 * M - 3 * 2 * M
        second.extend(1400)
        write(second, 2)
        check(second, 2)

    def test_parked_memory_serves_when_the_limit_is_reached(self, make: Make) -> None:
        pool = make(limit_bytes=8 * M)
        pool.create(600).release(park=True)
        third = [pool.create(600) for _ in range(2)]
        fourth = pool.create(1300)
        write(fourth, 4)
        check(fourth, 4)
        assert pool.held_bytes <= 8 * M and len(third) == 2

    def test_the_device_refuses_under_the_limit(self) -> None:
        api = FakeCuda(backed=True)
        driver = CudaDriver(api=api)
        pool = VTensorPool(SHAPE, 6000, slots=4, driver=driver)
        vtensor = pool.create(600)
        write(vtensor, 1)
        api.elsewhere_bytes = api.total_bytes - 4 * M
        with pytest.raises(CapacityError, match="the device is 2097152 B short"):
            vtensor.extend(3000)
        with pytest.raises(CapacityError):
            pool.create(3000)
        check(vtensor, 1)
        api.elsewhere_bytes = 0
        vtensor.extend(3000)
        write(vtensor, 1, 600)
        check(vtensor, 1)
        pool.close()
        driver.close()
        assert api.leaks() == {}

    def test_a_refused_map_is_taken_back(self) -> None:
        """Page tables can run out, too: the k-th map is refused."""
        for failing, most in product(range(5, 10), (None, 8 * M)):
            if failing > 7 and most:
                continue  # fewer calls
            api = FakeCuda(backed=True, refuse={failing: 2})
            driver = CudaDriver(api=api)
            pool = VTensorPool(SHAPE, 6000, slots=4, driver=driver, max_chunk_bytes=most, growth=4)
            first = pool.create(100)
            with pytest.raises(CapacityError):
                first.extend(1400)
            assert first.tokens == 100 and first.units == 1
            first.extend(1400)
            assert first.tokens == 1500
            pool.close()
            driver.close()
            assert api.leaks() == {}

    def test_trim_and_a_lower_limit_give_memory_back_while_others_live(self, make: Make) -> None:
        pool = make()
        live, parked, released = pool.create(600), pool.create(700), pool.create(1400)
        write(live, 1)
        parked.release(park=True)
        released.release()
        assert (pool.parked_bytes, pool.pooled_bytes) == (4 * M, 6 * M)
        assert pool.trim(6 * M) == 4 * M
        assert (pool.parked_bytes, pool.pooled_bytes) == (0, 6 * M)
        pool.set_limit(4 * M)
        assert pool.held_bytes == 4 * M
        with pytest.raises(CapacityError, match="live vTensors hold 2097152 B more"):
            pool.set_limit(0)
        with pytest.raises(CapacityError):
            pool.create(1400)
        check(live, 1)

    def test_free_chunks_of_other_sizes_make_room(self, make: Make) -> None:
        """Chunks of 2, 4, 4 and 8 MiB hold 682, 2,048, 3,413 and 6,144 tokens."""
        pool = make(layout="token_major, growing", limit_bytes=20 * M)
        first = pool.create(3500)
        assert pool.held_bytes == 18 * M
        first.release()
        small = [pool.create(500) for _ in range(2)]
        write(small[0], 1)
        write(small[1], 2)
        assert (pool.held_bytes, pool.pooled_bytes) == (20 * M, 16 * M)
        third = pool.create(600)  # the 4 MiB that are the fewest that make room go
        assert (pool.held_bytes, pool.pooled_bytes) == (18 * M, 12 * M)
        write(third, 3)
        small[0].extend(1400)  # the other 4 MiB serve where they belong
        write(small[0], 1, 500)
        assert (pool.held_bytes, pool.pooled_bytes) == (18 * M, 8 * M)
        with pytest.raises(CapacityError, match="short of the pool's limit"):
            pool.create(3500)
        fourth = pool.create(2000)  # 2 and 4 MiB: 8 have to go
        write(fourth, 4)
        for seed, vtensor in enumerate((*small, third, fourth), 1):
            check(vtensor, seed)
        assert (pool.held_bytes, pool.pooled_bytes) == (16 * M, 0)

    def test_a_lower_limit_takes_the_fewest_calls_by_size(self) -> None:
        api = FakeCuda(backed=True)
        driver = CudaDriver(api=api)
        pool = VTensorPool(SHAPE, 6000, max_chunk_bytes=8 * M, growth=4, driver=driver)
        pool.create(6000).release()
        assert pool.pooled_bytes == 18 * M
        calls = api.calls.get("cuMemRelease", 0)
        assert pool.trim(11 * M) == 8 * M and api.calls["cuMemRelease"] == calls + 1
        assert pool.trim(9 * M) == 2 * M and api.calls["cuMemRelease"] == calls + 2
        pool.close()
        driver.close()
        assert api.leaks() == {}

    def test_slots_run_out(self, make: Make) -> None:
        pool = make(slots=2)
        pool.create(1).release(park=True)
        made = [pool.create(1), pool.create(1)]
        with pytest.raises(CapacityError, match="all 2 slots"):
            pool.create(1)
        made[0].release()
        pool.create(1)

    def test_more_tokens_than_a_slot_holds(self, make: Make) -> None:
        with pytest.raises(CapacityError, match="holds 6000"):
            make().create(6001)

    def test_tensors_keep_the_addresses(self, device: CudaDriver) -> None:
        pool = VTensorPool(SHAPE, 600, slots=2, driver=device)
        key = pool.create(10).key(0)
        with pytest.raises(InvariantError, match="tensors still view the range"):
            pool.close()
        assert pool.backend.memory.left() == {
            "mappings": 0, "chunks": 0, "allocations": 0, "reservations": 1,
        }  # fmt: skip
        del key
        gc.collect()
        pool.close()

    def test_use_after_release(self, make: Make) -> None:
        pool = make()
        vtensor = pool.create(5)
        vtensor.release()
        for use in (vtensor.release, vtensor.swap_out, lambda: vtensor.key(0)):
            with pytest.raises(InvariantError, match="vtensor-use"):
                use()
        with pytest.raises(InvariantError):
            pool.fork(vtensor, 0)

    def test_shrinking_forgets_but_never_into_shared_chunks(self, make: Make) -> None:
        pool = make()
        source = pool.create(2000)
        write(source, 1)
        fork = pool.fork(source, 1500)
        for vtensor in (source, fork):
            with pytest.raises(InvariantError, match="vtensor-shared"):
                vtensor.shrink(600)
        fork.shrink(1400)
        fork.extend(300)
        write(fork, 5, 1400)
        check(fork, 1, 0, 1400)
        check(source, 1)
        fork.release()
        source.shrink(600)
        with pytest.raises(ConfigError, match="shrink: 601 of 600"):
            source.shrink(601)
        source.extend(100)
        write(source, 6, 600)
        check(source, 1, 0, 600)

    def test_bad_options(self, make: Make) -> None:
        with pytest.raises(ConfigError, match="unknown layout 'block'"):
            make(layout="block")
        with pytest.raises(ConfigError, match="guard"):
            make(guard="none")
        with pytest.raises(ConfigError, match="max_chunk_bytes 6291456 must be 2097152 times a po"):
            make(max_chunk_bytes=6 * M)
        pool = make()
        with pytest.raises(ConfigError, match="fork: 9 of 5 tokens"):
            pool.fork(pool.create(5), 9)
