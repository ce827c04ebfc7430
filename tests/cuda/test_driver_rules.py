"""What the driver refuses and allows: every rule the fake keeps, run on the card too.

A fake repeats its author's beliefs; these cases are where it is held to the device. Cases that
break the context for good run in a process of their own on the card.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from vtsim.backends.cuda.driver import CudaDriver, DeviceOutOfMemory, open_driver
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.cuda.fake_types import CUresult
from vtsim.errors import BackendError, ConfigError, CudaDriverError

M = 1 << 20
G = 2 * M
"""The granularity of every card so far, and of the fake."""
INVALID = "CUDA_ERROR_INVALID_VALUE"


@pytest.fixture
def area(device: CudaDriver) -> Iterator[int]:
    """32 MiB of addresses, unmapped and freed at the end whatever the test left there."""
    address = device.reserve(32 * M)
    yield address
    for at in range(address, address + 32 * M, G):
        for nbytes in (G, 2 * G, 4 * G):
            try:
                device.unmap(at, nbytes)
                break
            except CudaDriverError:
                continue
    device.free_addresses(address, 32 * M)


@pytest.fixture
def chunk(device: CudaDriver) -> Iterator[object]:
    handle = device.create(G)
    yield handle
    device.release(handle)


@pytest.fixture
def double(device: CudaDriver) -> Iterator[object]:
    """A handle of two granules."""
    handle = device.create(2 * G)
    yield handle
    device.release(handle)


def refused(status: str, call: object, *arguments: object) -> None:
    with pytest.raises(CudaDriverError) as error:
        call(*arguments)  # type: ignore[operator]
    assert error.value.name == status


def is_fake(device: CudaDriver) -> bool:
    return isinstance(device.api, FakeCuda)


class TestDevice:
    def test_says_what_it_is(self, device: CudaDriver) -> None:
        free, total = device.memory()
        assert 0 < free <= total
        assert device.granularity_bytes == G
        assert device.has_vmm and device.name and float(device.version) >= 12

    def test_an_ordinal_that_does_not_exist(self, device: CudaDriver) -> None:
        with pytest.raises(ConfigError, match="no CUDA device 99"):
            open_driver(99, device.api)


class TestReserve:
    def test_more_than_there_is_memory(self, device: CudaDriver) -> None:
        address = device.reserve(4 << 40)
        assert address % G == 0
        device.free_addresses(address, 4 << 40)

    @pytest.mark.parametrize("nbytes", [0, G + 1, M])
    def test_sizes_that_are_no_multiples_of_the_granularity(
        self, device: CudaDriver, nbytes: int
    ) -> None:
        refused(INVALID, device.reserve, nbytes)

    def test_free_wants_the_whole_range(self, device: CudaDriver, area: int) -> None:
        refused(INVALID, device.free_addresses, area, 16 * M)
        refused(INVALID, device.free_addresses, area + G, 30 * M)

    def test_free_twice(self, device: CudaDriver) -> None:
        address = device.reserve(G)
        device.free_addresses(address, G)
        refused(INVALID, device.free_addresses, address, G)

    def test_free_refuses_what_has_mappings(
        self, device: CudaDriver, area: int, chunk: object
    ) -> None:
        device.map(area, G, chunk)
        refused(INVALID, device.free_addresses, area, 32 * M)


class TestCreate:
    @pytest.mark.parametrize("nbytes", [0, M, G + 4096])
    def test_sizes_that_are_no_multiples(self, device: CudaDriver, nbytes: int) -> None:
        refused(INVALID, device.create, nbytes)

    def test_more_than_there_is(self, device: CudaDriver) -> None:
        _, total = device.memory()
        with pytest.raises(DeviceOutOfMemory):
            device.create(-(-total // G + 1) * G + (64 << 30))

    def test_memory_is_taken_and_given_back(self, device: CudaDriver) -> None:
        before, _ = device.memory()
        handle = device.create(64 * M)
        assert before - device.memory()[0] == 64 * M
        device.release(handle)
        assert device.memory()[0] == before


class TestMap:
    def test_maps_and_unmaps(self, device: CudaDriver, area: int, chunk: object) -> None:
        device.map(area, G, chunk)
        assert device.get_access(area) == 0
        device.set_access(area, G)
        assert device.get_access(area) == 3
        assert device.get_access(area + G - 1) == 3
        device.unmap(area, G)

    def test_driver_knows_the_handle(self, device: CudaDriver, area: int, double: object) -> None:
        device.map(area, 2 * G, double)
        found = device.handle_at(area + G)
        assert int(found) == int(double)  # type: ignore[call-overload]
        device.release(found)

    def test_twice_at_one_address(
        self, device: CudaDriver, area: int, chunk: object, double: object
    ) -> None:
        device.map(area + G, G, chunk)
        refused(INVALID, device.map, area + G, G, chunk)
        refused(INVALID, device.map, area, 2 * G, double)

    def test_one_handle_at_two_addresses(
        self, device: CudaDriver, area: int, chunk: object
    ) -> None:
        device.map(area, G, chunk)
        device.map(area + 4 * G, G, chunk)
        device.set_access(area + 4 * G, G)

    def test_part_of_a_handle(self, device: CudaDriver, area: int, double: object) -> None:
        refused("CUDA_ERROR_NOT_SUPPORTED", device.map, area, G, double)

    def test_more_than_a_handle(self, device: CudaDriver, area: int, chunk: object) -> None:
        refused("CUDA_ERROR_NOT_SUPPORTED", device.map, area, 2 * G, chunk)

    def test_addresses_that_are_not_aligned(
        self, device: CudaDriver, area: int, chunk: object
    ) -> None:
        refused(INVALID, device.map, area + M, G, chunk)

    def test_across_the_end_of_the_range(
        self, device: CudaDriver, area: int, double: object
    ) -> None:
        """A card lets it pass, and maps behind the range."""
        if is_fake(device):
            refused(INVALID, device.map, area + 32 * M - G, 2 * G, double)
        else:
            device.map(area + 32 * M - G, 2 * G, double)
            device.unmap(area + 32 * M - G, 2 * G)

    def test_outside_any_range(self, device: CudaDriver, chunk: object) -> None:
        address = device.reserve(G)
        device.free_addresses(address, G)
        refused(INVALID, device.map, address, G, chunk)


class TestUnmap:
    def test_part_of_a_mapping(self, device: CudaDriver, area: int, double: object) -> None:
        device.map(area, 2 * G, double)
        refused(INVALID, device.unmap, area, G)
        refused(INVALID, device.unmap, area + G, G)
        device.unmap(area, 2 * G)

    def test_what_is_not_mapped(self, device: CudaDriver, area: int) -> None:
        """A card lets it pass, silently."""
        if is_fake(device):
            refused(INVALID, device.unmap, area, G)
        else:
            device.unmap(area, G)

    def test_several_at_once(
        self, device: CudaDriver, area: int, chunk: object, double: object
    ) -> None:
        device.map(area, G, chunk)
        device.map(area + G, 2 * G, double)
        device.set_access(area, 3 * G)
        device.unmap(area, 3 * G)
        device.map(area, 2 * G, double)

    def test_a_gap_inside(self, device: CudaDriver, area: int, chunk: object) -> None:
        device.map(area, G, chunk)
        device.map(area + 2 * G, G, chunk)
        if is_fake(device):
            refused(INVALID, device.unmap, area, 3 * G)
        else:  # a card lets it pass
            device.unmap(area, 3 * G)


class TestSetAccess:
    def test_what_is_not_mapped(self, device: CudaDriver, area: int) -> None:
        refused(INVALID, device.set_access, area, G)

    def test_beyond_what_is_mapped(self, device: CudaDriver, area: int, chunk: object) -> None:
        device.map(area, G, chunk)
        refused(INVALID, device.set_access, area, 2 * G)

    def test_part_of_a_mapping(self, device: CudaDriver, area: int, double: object) -> None:
        device.map(area, 2 * G, double)
        refused(INVALID, device.set_access, area, G)


class TestRelease:
    def test_memory_lives_until_the_last_mapping_goes(self, device: CudaDriver, area: int) -> None:
        before, _ = device.memory()
        handle = device.create(4 * G)
        device.map(area, 4 * G, handle)
        device.release(handle)
        assert before - device.memory()[0] == 4 * G
        device.unmap(area, 4 * G)
        assert device.memory()[0] == before


class TestThreads:
    def test_a_thread_needs_the_context_for_ordinary_memory(self, device: CudaDriver) -> None:
        statuses = []

        def work() -> None:
            try:
                device.allocate(G)
            except CudaDriverError as error:
                statuses.append(error.name)
            device.set_current()
            device.free(device.allocate(G))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert statuses == ["CUDA_ERROR_INVALID_CONTEXT"]


class TestOrdinaryMemory:
    def test_is_taken_and_given_back(self, device: CudaDriver) -> None:
        before, _ = device.memory()
        address = device.allocate(64 * M)
        assert before - device.memory()[0] == 64 * M
        device.free(address)
        assert device.memory()[0] == before

    def test_nothing(self, device: CudaDriver) -> None:
        refused(INVALID, device.allocate, 0)

    def test_free_wants_what_was_given(self, device: CudaDriver) -> None:
        address = device.allocate(4 * M)
        refused(INVALID, device.free, address + M)
        device.free(address)

    def test_more_than_there_is(self, device: CudaDriver) -> None:
        _, total = device.memory()
        with pytest.raises(DeviceOutOfMemory):
            device.allocate(total + (1 << 30))


class TestBytes:
    def test_copies_and_fills(self, device: CudaDriver, area: int, chunk: object) -> None:
        import ctypes

        device.map(area, G, chunk)
        device.set_access(area, G)
        stream, host = device.create_stream(), device.allocate_host(G)
        device.fill(area, 7, G, stream)
        device.fill(area + 4096, 9, 4096, stream)
        device.copy(area + M, area + 4096, 4096, stream)
        device.copy_to_host(host, area, G, stream)
        device.synchronize_stream(stream)
        got = ctypes.string_at(host, G)
        assert got[:4096] == b"\7" * 4096 and got[4096:8192] == b"\t" * 4096
        assert got[M : M + 4096] == b"\t" * 4096 and got[M + 4096] == 7
        ctypes.memset(host, 5, 16)
        device.copy_from_host(area + 8192, host, 16, stream)
        device.copy_to_host(host + 64, area + 8192, 16, stream)
        device.synchronize_stream(stream)
        assert ctypes.string_at(host + 64, 16) == b"\5" * 16
        device.free_host(host)
        device.destroy_stream(stream)

    def test_bytes_that_are_not_mapped_or_not_granted_are_refused(
        self, device: CudaDriver, area: int, chunk: object
    ) -> None:
        stream, host = device.create_stream(), device.allocate_host(4096)
        refused(INVALID, device.copy_to_host, host, area, 4096, stream)
        device.map(area, G, chunk)
        refused(INVALID, device.copy_to_host, host, area, 4096, stream)
        refused(INVALID, device.copy_from_host, area, host, 4096, stream)
        refused(INVALID, device.fill, area, 0, 4096, stream)
        device.set_access(area, G)
        device.copy_to_host(host, area, 4096, stream)
        device.synchronize_stream(stream)  # the context lives
        device.free_host(host)
        device.destroy_stream(stream)

    def test_an_alias_shows_the_same_bytes(
        self, device: CudaDriver, area: int, chunk: object
    ) -> None:
        import ctypes

        for at in (area, area + 8 * M):
            device.map(at, G, chunk)
            device.set_access(at, G)
        stream, host = device.create_stream(), device.allocate_host(4096)
        device.fill(area, 3, G, stream)
        device.copy_to_host(host, area + 8 * M, 4096, stream)
        device.synchronize_stream(stream)
        assert ctypes.string_at(host, 4096) == b"\3" * 4096
        device.free_host(host)
        device.destroy_stream(stream)


class TestEvents:
    def test_order(self, device: CudaDriver) -> None:
        first, second, event = device.create_stream(), device.create_stream(), device.create_event()
        assert device.event_done(event)  # never recorded
        device.record_event(event, first)
        device.wait_event(second, event)
        device.synchronize_stream(second)
        device.synchronize_event(event)
        assert device.event_done(event)
        device.destroy_event(event)
        device.destroy_stream(first)
        device.destroy_stream(second)


class TestFakeOnly:
    """What no card can be asked to do on demand."""

    def test_the_kth_call_fails_once(self) -> None:
        api = FakeCuda(refuse={2: CUresult.CUDA_ERROR_UNKNOWN})
        device = CudaDriver(api=api)
        handle = device.create(G)
        refused("CUDA_ERROR_UNKNOWN", device.create, G)
        device.release(handle)
        device.close()
        assert api.leaks() == {} and api.fallible_calls == 3

    def test_runs_out_at_a_set_size(self) -> None:
        api = FakeCuda(total_bytes=10 * M, context_bytes=3 * M)
        device = CudaDriver(api=api)
        handles = [device.create(G) for _ in range(3)]
        with pytest.raises(DeviceOutOfMemory):
            device.create(G)
        api.elsewhere_bytes = M
        device.release(device.create(G))
        for handle in handles:
            device.release(handle)
        device.close()

    def test_leaks_are_named(self) -> None:
        api = FakeCuda()
        device = CudaDriver(api=api)
        area, handle = device.reserve(G), device.create(G)
        device.map(area, G, handle)
        device.allocate(M)
        device.create_stream()
        assert api.leaks() == {
            "reservations": 1, "mappings": 1, "handles": 1, "allocations": 1, "streams": 1,
            "contexts": 1,
        }  # fmt: skip

    def test_a_kernel_that_reads_what_is_unmapped_breaks_the_context(self) -> None:
        device = CudaDriver(api=(api := FakeCuda()))
        area, handle = device.reserve(G), device.create(G)
        device.map(area, G, handle)
        go = threading.Event()
        api.launch(reads=((area, G),), until=go)
        device.unmap(area, G)  # succeeds at once: nothing protects the reader
        go.set()
        with pytest.raises(CudaDriverError, match="ILLEGAL_ADDRESS"):
            device.memory()
        with pytest.raises(CudaDriverError, match="ILLEGAL_ADDRESS"):
            device.release(handle)

    def test_reading_without_access_breaks_it_too(self) -> None:
        device = CudaDriver(api=(api := FakeCuda()))
        area, handle = device.reserve(G), device.create(G)
        device.map(area, G, handle)
        api.launch(reads=((area, 16),))
        with pytest.raises(CudaDriverError, match="ILLEGAL_ADDRESS"):
            device.memory()

    def test_no_vmm(self) -> None:
        with pytest.raises(BackendError, match="Fake GPU does not support virtual memory"):
            open_driver(api=FakeCuda(vmm=False))

    def test_errors_name_call_and_arguments(self) -> None:
        device = CudaDriver(api=FakeCuda())
        with pytest.raises(CudaDriverError, match=r"cuMemUnmap\(0x123456789000, 2097152\)"):
            device.unmap(0x123456789000, G)
