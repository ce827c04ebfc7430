"""A thin typed wrapper over `cuda.bindings.driver`: calls that raise instead of returning a status.

It knows one device and its primary context (the one torch uses too), and nothing of chunks, slots
or plans. The bindings are imported when a device is opened, never before, so that vtsim runs
without them; anything with the same functions will do in their place (`vtsim.backends.cuda.fake`).
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

from vtsim.errors import BackendError, ConfigError, CudaDriverError

INSTALL_HINT = "pip install cuda-bindings (or vtsim[gpu]), on a machine with an NVIDIA driver"
Access = Literal["none", "read", "readwrite"]


class DeviceOutOfMemory(CudaDriverError):
    """The device itself refused memory (`CUDA_ERROR_OUT_OF_MEMORY`)."""


def load_api() -> Any:
    """`cuda.bindings.driver`. Raises ConfigError that says what to install."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise ConfigError(
            f"real GPU memory needs the CUDA driver bindings ({error}): {INSTALL_HINT}"
        ) from None


class CudaDriver:
    """One device. Addresses and sizes are ints in bytes; handles, streams and events are opaque.

    Every method is one driver call (the constructor and `close` apart) and raises CudaDriverError
    with the call and its arguments; DeviceOutOfMemory where the device has no more to give.
    """

    def __init__(self, ordinal: int = 0, api: Any = None) -> None:
        self.api = load_api() if api is None else api
        self.ordinal = ordinal
        api = self.api
        self._ok = api.CUresult.CUDA_SUCCESS
        self._context: Any = None
        try:
            self._call("cuInit", 0)
            self._device = self._call("cuDeviceGet", ordinal)
        except CudaDriverError as error:
            raise ConfigError(f"no CUDA device {ordinal}: {error}") from None
        except Exception as error:  # the bindings find no libcuda: their own error types
            raise ConfigError(
                f"no NVIDIA driver ({str(error).splitlines()[0]}): {INSTALL_HINT}; "
                "simulated memory needs neither"
            ) from None
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self.set_current()
        self._properties = self._chunk_properties()
        self._grants = {
            "none": [self._access(api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE)],
            "read": [self._access(api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ)],
            "readwrite": [self._access(api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)],
        }
        # The calls that are made by the ten thousand, looked up once.
        self._mem_create, self._mem_release = api.cuMemCreate, api.cuMemRelease
        self._mem_map, self._mem_unmap = api.cuMemMap, api.cuMemUnmap
        self._mem_set_access = api.cuMemSetAccess
        self._read_write = self._grants["readwrite"]

    def close(self) -> None:
        """Give the context back. Once."""
        if self._context is not None:
            self._context = None
            self._call("cuDevicePrimaryCtxRelease", self._device)

    # -- the funnel -------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: Any) -> Any:
        result = getattr(self.api, name)(*arguments)
        if result[0] != self._ok:
            raise self._error(result[0], name, arguments)
        return result[1] if len(result) == 2 else result[1:]

    def _error(self, status: Any, name: str, arguments: tuple[Any, ...]) -> CudaDriverError:
        shown = ", ".join(_shown(argument) for argument in arguments)
        kind = CudaDriverError
        if status == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            kind = DeviceOutOfMemory
        return kind(getattr(status, "name", str(status)), f"{name}({shown})")

    # -- the device -------------------------------------------------------------------------------

    def set_current(self) -> None:
        """Make the device's context the calling thread's: each thread must, before any call."""
        self._call("cuCtxSetCurrent", self._context)

    @property
    def name(self) -> str:
        name = self._call("cuDeviceGetName", 256, self._device)
        return bytes(name).split(b"\0")[0].decode()

    @property
    def version(self) -> str:
        """The CUDA version that the driver implements, such as 13.0."""
        number = int(self._call("cuDriverGetVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def has_vmm(self) -> bool:
        attributes = self.api.CUdevice_attribute
        supported = attributes.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        return bool(self._call("cuDeviceGetAttribute", supported, self._device))

    @property
    def granularity_bytes(self) -> int:
        flags = self.api.CUmemAllocationGranularity_flags
        minimum = flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._properties, minimum))

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device, as it sees them: everybody's use counts."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    def _location(self) -> Any:
        location = self.api.CUmemLocation()
        location.type = self.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = self.ordinal
        return location

    def _chunk_properties(self) -> Any:
        properties = self.api.CUmemAllocationProp()
        properties.type = self.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = self._location()
        return properties

    def _access(self, flags: Any) -> Any:
        grant = self.api.CUmemAccessDesc()
        grant.location = self._location()
        grant.flags = flags
        return grant

    def grants(self, access: Access) -> list[Any]:
        """What `cuMemSetAccess` wants to be given, for bare loops over the bindings."""
        return self._grants[access]

    # -- virtual memory management ----------------------------------------------------------------

    def reserve(self, nbytes: int, alignment: int = 0) -> int:
        return int(self._call("cuMemAddressReserve", nbytes, alignment, 0, 0))

    def free_addresses(self, address: int, nbytes: int) -> None:
        self._call("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> Any:
        """A handle on `nbytes` of memory on the device."""
        status, handle = self._mem_create(nbytes, self._properties, 0)
        if status != self._ok:
            raise self._error(status, "cuMemCreate", (nbytes,))
        return handle

    def release(self, handle: Any) -> None:
        (status,) = self._mem_release(handle)
        if status != self._ok:
            raise self._error(status, "cuMemRelease", (handle,))

    def map(self, address: int, nbytes: int, handle: Any) -> None:
        (status,) = self._mem_map(address, nbytes, 0, handle, 0)
        if status != self._ok:
            raise self._error(status, "cuMemMap", (address, nbytes, 0, handle))

    def unmap(self, address: int, nbytes: int) -> None:
        (status,) = self._mem_unmap(address, nbytes)
        if status != self._ok:
            raise self._error(status, "cuMemUnmap", (address, nbytes))

    def set_access(self, address: int, nbytes: int, access: Access = "readwrite") -> None:
        grant = self._read_write if access == "readwrite" else self._grants[access]
        (status,) = self._mem_set_access(address, nbytes, grant, 1)
        if status != self._ok:
            raise self._error(status, "cuMemSetAccess", (address, nbytes, access))

    def get_access(self, address: int) -> int:
        """What the device may do at a mapped address: 0 nothing, 1 read, 3 read and write."""
        return int(self._call("cuMemGetAccess", self._location(), address))

    def handle_at(self, address: int) -> Any:
        """The handle mapped at an address, by the driver's books; the caller must release it."""
        return self._call("cuMemRetainAllocationHandle", address)

    # -- ordinary memory --------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        return int(self._call("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def allocate_host(self, nbytes: int) -> int:
        """Pinned host memory; its address in this process."""
        return int(self._call("cuMemHostAlloc", nbytes, 0))

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    # -- streams and events -----------------------------------------------------------------------

    def create_stream(self) -> Any:
        """A stream that does not wait for the default stream's work."""
        flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._call("cuStreamCreate", int(flags))

    def destroy_stream(self, stream: Any) -> None:
        self._call("cuStreamDestroy", stream)

    def synchronize_stream(self, stream: Any) -> None:
        self._call("cuStreamSynchronize", stream)

    def wait_event(self, stream: Any, event: Any) -> None:
        """Later work on `stream` waits for `event`."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def create_event(self) -> Any:
        """An event for order, not for time; waiting for it blocks instead of spinning."""
        flags = self.api.CUevent_flags
        bits = int(flags.CU_EVENT_DISABLE_TIMING) | int(flags.CU_EVENT_BLOCKING_SYNC)
        return self._call("cuEventCreate", bits)

    def destroy_event(self, event: Any) -> None:
        self._call("cuEventDestroy", event)

    def record_event(self, event: Any, stream: Any) -> None:
        self._call("cuEventRecord", event, stream)

    def event_done(self, event: Any) -> bool:
        (status,) = self.api.cuEventQuery(event)
        if status == self.api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        if status != self._ok:
            raise self._error(status, "cuEventQuery", (event,))
        return True

    def synchronize_event(self, event: Any) -> None:
        self._call("cuEventSynchronize", event)

    # -- bytes ------------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyDtoHAsync", target, source, nbytes, stream)

    def copy_from_host(self, target: int, source: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def fill(self, address: int, byte: int, nbytes: int, stream: Any) -> None:
        self._call("cuMemsetD8Async", address, byte, nbytes, stream)


def open_driver(ordinal: int = 0, api: Any = None) -> CudaDriver:
    """The driver of a device that can do what vtsim needs.

    Raises ConfigError: no bindings, no driver, no such device; BackendError: no VMM.
    """
    driver = CudaDriver(ordinal, api)
    if not driver.has_vmm:
        name = driver.name
        driver.close()
        raise BackendError(f"{name} does not support virtual memory management (cuMemMap)")
    return driver


def _shown(argument: Any) -> str:
    if isinstance(argument, int) and not isinstance(argument, bool) and argument > 1 << 32:
        return hex(argument)
    return str(argument) if isinstance(argument, int | str) else type(argument).__name__
