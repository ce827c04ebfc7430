"""The worlds a backend test runs in: simulated, on the fake driver, and on a card if there is one.

A card's tests are marked `gpu`; without a card they skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from vtsim.backends.cuda.backend import CudaBackend
from vtsim.backends.cuda.driver import CudaDriver, open_driver
from vtsim.backends.cuda.fake import FakeCuda
from vtsim.backends.sim import SimBackend
from vtsim.errors import VtsimError
from vtsim.testing.backends import INFO, KV, World

CARD = pytest.param("card", marks=pytest.mark.gpu)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a card; skipped without one")


@cache
def card_missing() -> str:
    """Why no card can be used; empty if one can."""
    try:
        open_driver().close()
    except VtsimError as error:
        return str(error)
    return ""


def real_driver() -> CudaDriver:
    if card_missing():
        pytest.skip(f"no card: {card_missing()}")
    return open_driver()


@pytest.fixture(params=["sim", "fake", CARD])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Backends of the toy layout; what a test leaves open is given back behind it."""
    if request.param == "sim":

        def simulated(info: Any = INFO, **options: Any) -> SimBackend:
            return SimBackend(info, KV, placement=True, **options)

        yield World("sim", simulated, lambda backend: backend._driver.snapshot())
        return
    api = FakeCuda() if request.param == "fake" else None
    driver = CudaDriver(api=api) if api else real_driver()
    made: list[CudaBackend] = []

    def real(info: Any = INFO, **options: Any) -> CudaBackend:
        made.append(CudaBackend(info, KV, driver=driver, **options))
        return made[-1]

    def state(backend: CudaBackend) -> object:
        backend.page_table()  # waits for the memory thread
        return backend.memory.snapshot()

    yield World(request.param, real, state)
    for backend in made:
        backend.abandon()
    driver.close()
    assert api is None or api.leaks() == {}


@pytest.fixture(params=["fake", CARD])
def device(request: pytest.FixtureRequest) -> Iterator[CudaDriver]:
    """A driver: the fake's with real bytes, and the card's."""
    api = FakeCuda(backed=True) if request.param == "fake" else None
    driver = CudaDriver(api=api) if api else real_driver()
    yield driver
    driver.close()
    assert api is None or api.leaks() == {}
