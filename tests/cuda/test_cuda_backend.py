"""What only the real backend has: failing calls, the fence, its thread, the device's own word."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator

import pytest

from vtsim.backends.cuda.backend import CudaBackend, device_info
from vtsim.backends.cuda.driver import CudaDriver, load_api
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.cuda.fake_types import CUresult
from vtsim.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    CudaDriverError,
    InvariantError,
)
from vtsim.plan import OpKind, Plan
from vtsim.ports import DeviceInfo, MemoryBackend
from vtsim.testing.backends import (
    INFO,
    KV,
    M,
    allocate,
    copy,
    create,
    deallocate,
    destroy,
    free,
    mapped,
    plan_of,
    reserve,
    swap,
    unmapped,
)

UNKNOWN = CUresult.CUDA_ERROR_UNKNOWN


@pytest.fixture
def api() -> Iterator[FakeCuda]:
    fake = FakeCuda(backed=True)
    yield fake
    if fake.failure is None:
        assert fake.leaks() == {}


@pytest.fixture
def memory(api: FakeCuda) -> Iterator[CudaBackend]:
    driver = CudaDriver(api=api)
    backend = CudaBackend(INFO, KV, driver=driver)
    yield backend
    backend.abandon()
    if api.failure is None:
        driver.close()


def do(backend: MemoryBackend, *plans: Plan) -> None:
    for plan in plans:
        assert backend.settle(backend.submit(plan, 0)).done


def snapshot(backend: CudaBackend) -> object:
    backend.page_table()
    return backend.memory.snapshot()


def address(backend: CudaBackend, slot: int, offset: int = 0, arena: int = 0) -> int:
    return backend.memory.reservation(arena).address + slot * KV.slot_stride_bytes + offset


START = plan_of(reserve(0), create(1), create(2), mapped(1, 0, 0), mapped(2, 1, 0))


class TestFailingCalls:
    def test_whatever_call_fails_the_plan_is_undone_and_the_call_named(self) -> None:
        """Status UNKNOWN at every driver call of a plan with every kind of operation."""
        plan = plan_of(
            create(3), mapped(3, 0, 1), mapped(3, 2, 0), copy(1, 0, 0, M),
            swap(OpKind.SWAP_OUT, 0, 0, M), unmapped(2, 1, 0), destroy(2), allocate(4, M),
            deallocate(4, M), reserve(1), free(1),
        )  # fmt: skip
        api = FakeCuda(backed=True)
        with CudaBackend(INFO, KV, driver=CudaDriver(api=api)) as backend:
            do(backend, START)
            first = api.fallible_calls + 1
            do(backend, plan)
            last = api.fallible_calls
            backend.abandon()
        named = set()
        for call in range(first, last + 1):
            api = FakeCuda(backed=True, refuse={call: UNKNOWN})
            driver = CudaDriver(api=api)
            backend = CudaBackend(INFO, KV, driver=driver)
            do(backend, START)
            before = snapshot(backend)
            with pytest.raises(CudaDriverError, match="CUDA_ERROR_UNKNOWN") as error:
                backend.settle(backend.submit(plan, 1))
            named.add(error.value.call.split("(")[0])
            assert snapshot(backend) == before
            assert backend.memory.moves.host_bytes == 0
            do(backend, plan)  # and it can be given again
            backend.abandon()
            driver.close()
            assert api.leaks() == {}
        assert named == {
            "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyDtoDAsync", "cuMemHostAlloc",
            "cuMemcpyDtoHAsync", "cuMemUnmap", "cuMemRelease", "cuMemAlloc", "cuMemFree",
            "cuMemAddressReserve", "cuMemAddressFree",
        }  # fmt: skip

    def test_access_refused_leaves_nothing_mapped(self) -> None:
        api = FakeCuda(refuse={4: CUresult.CUDA_ERROR_OUT_OF_MEMORY})
        driver = CudaDriver(api=api)
        with CudaBackend(INFO, KV, driver=driver) as backend:
            receipt = backend.settle(
                backend.submit(plan_of(reserve(0), create(1), mapped(1, 0, 0)), 0)
            )
            assert (receipt.done, receipt.failed_call, receipt.short_bytes) == (False, 2, 4 * M)
        driver.close()
        assert api.leaks() == {}

    def test_undoing_that_fails_breaks_the_backend(self) -> None:
        # reserve, create, create, [create: unknown], then the first undoing release fails too.
        api = FakeCuda(refuse={4: UNKNOWN, 5: UNKNOWN})
        backend = CudaBackend(INFO, KV, driver=CudaDriver(api=api))
        with pytest.raises(BackendError, match="undoing a EXTEND plan failed: cuMemRelease"):
            backend.settle(backend.submit(plan_of(reserve(0), create(1), create(2), create(3)), 0))
        with pytest.raises(BackendError, match="in an unknown state"):
            backend.settle(backend.submit(plan_of(create(9)), 1))
        assert backend.abandon() == {"chunks": 2, "reservations": 1}
        assert api.leaks() == {"contexts": 1}


class TestOutOfMemory:
    def test_the_device_refuses_under_the_limit(self, api: FakeCuda, memory: CudaBackend) -> None:
        """Another process took the memory: a value, with nothing changed."""
        do(memory, START)
        api.elsewhere_bytes = api.total_bytes - 12 * M
        before = snapshot(memory)
        receipt = memory.settle(memory.submit(plan_of(create(5), create(6)), 1))
        assert (receipt.done, receipt.failed_call, receipt.short_bytes) == (False, 1, 4 * M)
        assert snapshot(memory) == before
        do(memory, plan_of(create(5)))

    def test_the_limit_must_be_free_at_the_start(self, api: FakeCuda, memory: CudaBackend) -> None:
        memory.check_limit(7 << 30)
        api.elsewhere_bytes = 2 << 30
        with pytest.raises(CapacityError, match="has 6442450944 B free now, 1073741824 B less"):
            memory.check_limit(7 << 30)


class TestFence:
    def test_without_it_the_reader_dies(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, START)
        end = threading.Event()
        api.launch(reads=((address(memory, 0), M),), until=end)
        do(memory, plan_of(unmapped(1, 0, 0)))
        end.set()
        with pytest.raises(CudaDriverError, match="ILLEGAL_ADDRESS"):
            memory.settle(memory.submit(plan_of(create(7)), 1))
        with pytest.raises(BackendError, match="unknown state"):
            memory.settle(memory.submit(plan_of(create(7)), 2))

    def test_unmap_waits_for_the_kernel(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, START)
        end = threading.Event()
        api.launch(reads=((address(memory, 0), M),), until=end)
        memory.protect(0, [0])
        ticket = memory.submit(plan_of(unmapped(1, 0, 0)), 1)  # returns at once
        time.sleep(0.02)
        assert api.calls.get("cuMemUnmap", 0) == 0
        end.set()
        assert memory.settle(ticket).done
        assert memory.fence.waits == 1 and api.failure is None

    def test_other_slots_do_not_wait(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, START)
        end = threading.Event()
        api.launch(reads=((address(memory, 0), M),), until=end)
        memory.protect(0, [0])
        do(memory, plan_of(unmapped(2, 1, 0), destroy(2)))
        assert memory.fence.waits == 0
        end.set()

    def test_allocations_wait_too(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, plan_of(allocate(1, M)))
        end = threading.Event()
        api.launch(reads=((memory.memory.allocation(1).address, M),), until=end)
        memory.protect(0, [], [1])
        ticket = memory.submit(plan_of(deallocate(1, M)), 1)
        time.sleep(0.01)
        assert api.calls.get("cuMemFree", 0) == 0
        end.set()
        assert memory.settle(ticket).done

    def test_a_copy_starts_behind_the_kernel_that_writes_its_source(
        self, api: FakeCuda, memory: CudaBackend
    ) -> None:
        do(memory, START)
        source, target = address(memory, 0), address(memory, 1)
        ctypes.memset(source, 1, M)
        end = threading.Event()

        def write() -> None:
            ctypes.memset(source, 2, M)

        api.launch(until=end, body=write)
        memory.protect(0, [0])
        ticket = memory.submit(plan_of(copy(1, 0, 0, M)), 1)
        time.sleep(0.01)
        end.set()
        assert memory.settle(ticket).done
        assert ctypes.string_at(target, M) == b"\2" * M

    def test_events_are_shared_and_reused(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, START)
        for _ in range(100):
            memory.protect(0, [0, 1])
        assert api.calls["cuEventCreate"] == 2
        do(memory, plan_of(unmapped(1, 0, 0)))
        memory.protect(0, [0])
        assert api.calls["cuEventCreate"] == 2 and memory.fence.waits == 0

    def test_two_streams(self, api: FakeCuda, memory: CudaBackend) -> None:
        do(memory, START)
        other = memory.driver.create_stream()
        end = threading.Event()
        api.launch(other, reads=((address(memory, 0), M),), until=end)
        memory.protect(other, [0])
        memory.protect(0, [0])  # a later use elsewhere does not cover the earlier
        ticket = memory.submit(plan_of(unmapped(1, 0, 0)), 1)
        time.sleep(0.01)
        assert api.calls.get("cuMemUnmap", 0) == 0
        end.set()
        assert memory.settle(ticket).done
        memory.driver.destroy_stream(other)


class TestBytes:
    def test_swap_goes_to_another_slot_by_name(self, memory: CudaBackend) -> None:
        do(memory, START)
        ctypes.memset(address(memory, 0), 0x5A, 4 * M)
        do(memory, plan_of(swap(OpKind.SWAP_OUT, 0, 0, 3 * M, chunk=77), unmapped(1, 0, 0)))
        assert memory.memory.moves.host_bytes == 3 * M
        do(memory, plan_of(mapped(1, 2, 0)), plan_of(swap(OpKind.SWAP_IN, 2, 0, 3 * M, chunk=77)))
        assert ctypes.string_at(address(memory, 2), 3 * M) == b"\x5a" * (3 * M)
        assert memory.memory.moves.host_bytes == 0

    def test_a_swap_undone_keeps_what_is_in_host_memory(self, memory: CudaBackend) -> None:
        do(memory, START, plan_of(swap(OpKind.SWAP_OUT, 0, 0, M, chunk=5)))
        with pytest.raises(InvariantError):
            memory.settle(
                memory.submit(plan_of(swap(OpKind.SWAP_IN, 1, 0, M, chunk=5), destroy(1)), 1)
            )
        assert memory.memory.moves.host_bytes == M
        do(memory, plan_of(swap(OpKind.SWAP_IN, 1, 0, M, chunk=5)))

    def test_nothing_comes_back_that_was_not_swapped_out(self, memory: CudaBackend) -> None:
        do(memory, START)
        with pytest.raises(InvariantError, match="0 B were swapped out under that name"):
            memory.settle(memory.submit(plan_of(swap(OpKind.SWAP_IN, 0, 0, M, chunk=8)), 1))
        do(memory, plan_of(swap(OpKind.SWAP_OUT, 0, 0, M, chunk=8)))
        with pytest.raises(InvariantError, match="under that name already"):
            memory.settle(memory.submit(plan_of(swap(OpKind.SWAP_OUT, 1, 0, M, chunk=8)), 1))

    def test_poison(self, api: FakeCuda) -> None:
        driver = CudaDriver(api=api)
        with CudaBackend(INFO, KV, driver=driver, poison=True) as backend:
            do(backend, START)
            assert ctypes.string_at(address(backend, 0), 4 * M) == b"\xff" * (4 * M)
            ctypes.memset(address(backend, 0), 1, M)
            do(backend, plan_of(mapped(1, 2, 1)))  # a second owner: not poisoned
            assert ctypes.string_at(address(backend, 2, 4 * M), 4) == b"\1" * 4
            do(backend, plan_of(unmapped(1, 0, 0), unmapped(1, 2, 1), mapped(1, 1, 1)))
            assert ctypes.string_at(address(backend, 1, 4 * M), 4) == b"\xff" * 4
            backend.abandon()
        driver.close()


class TestLife:
    def test_submit_returns_before_the_calls_are_made(
        self, api: FakeCuda, memory: CudaBackend
    ) -> None:
        do(memory, START)
        end = threading.Event()
        api.launch(until=end)
        memory.protect(0, [0])
        tickets = [memory.submit(plan_of(unmapped(1, 0, 0)), 1)]
        tickets += [memory.submit(plan_of(create(n)), 2) for n in (5, 6)]
        assert api.calls["cuMemCreate"] == 2
        end.set()
        assert [memory.settle(ticket).done for ticket in reversed(tickets)] == [True] * 3
        kinds = [call.operation.kind for call in memory.calls()][-3:]
        assert kinds == [OpKind.UNMAP, OpKind.CREATE, OpKind.CREATE]

    def test_receipts_tell_the_time_they_took(self, memory: CudaBackend) -> None:
        receipt = memory.settle(memory.submit(START, 0))
        assert receipt.wall_s is not None and 0 < receipt.wall_s < 10

    def test_the_driver_is_asked_what_it_has_mapped(self, memory: CudaBackend) -> None:
        do(memory, START)
        assert memory.ask_driver(memory.page_table()) == []
        assert memory.chunk_at((0, 0, 0)) == 1 and memory.chunk_at((0, 0, 1)) == -1
        memory.driver.set_access(address(memory, 1), 4 * M, "read")
        assert memory.ask_driver(memory.page_table()) == [(0, 1, 0)]

    def test_readings_of_the_device_agree_with_the_books(self, memory: CudaBackend) -> None:
        do(memory, START)
        start, reading = memory.readings[0], memory.read_device("loaded")
        assert start.free_bytes - reading.free_bytes == reading.accounted_bytes == 8 * M

    def test_an_error_in_a_with_block_gives_everything_back(self, api: FakeCuda) -> None:
        driver = CudaDriver(api=api)
        with pytest.raises(KeyboardInterrupt):
            with CudaBackend(INFO, KV, driver=driver) as backend:
                do(backend, START)
                raise KeyboardInterrupt
        driver.close()
        assert api.leaks() == {}

    def test_the_card_can_say_what_it_is(self, api: FakeCuda) -> None:
        driver = CudaDriver(api=api)
        assert device_info(driver) == DeviceInfo("Fake GPU", 8 << 30, 2 * M, 64 << 40)
        with CudaBackend(None, KV, driver=driver) as backend:
            assert backend.info == device_info(driver)
        driver.close()

    def test_pages_the_driver_cannot_make(self, api: FakeCuda) -> None:
        driver = CudaDriver(api=api)
        small = DeviceInfo("patched", 8 << 30, 64 << 10, 64 << 40)
        with pytest.raises(ConfigError, match="65536 B are asked for.*vAttention's patched"):
            CudaBackend(small, KV, driver=driver)
        driver.close()

    def test_placement_cannot_be_off(self, api: FakeCuda) -> None:
        with pytest.raises(ConfigError, match="needs placement"):
            CudaBackend(INFO, KV, placement=False)

    def test_tensors_keep_their_arena(self, memory: CudaBackend) -> None:
        do(memory, plan_of(reserve(0)))

        class View:
            pass

        view = View()
        memory.memory.reservation(0).viewers.add(view)
        with pytest.raises(InvariantError, match="1 tensors still view the range"):
            memory.settle(memory.submit(plan_of(free(0)), 1))
        del view
        do(memory, plan_of(free(0)))


def test_without_the_bindings_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(ConfigError, match="pip install cuda-bindings"):
        load_api()
