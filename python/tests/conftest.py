"""JAX on four CPU devices, and the shared programs where they are."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# Small programs run once: LLVM's costly passes would take half of the time.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)

import pytest

REPOSITORY = Path(__file__).parents[2]


def shared_folder() -> Path | None:
    """What lies beside the checkout, or where MEMPLAN_SHARED says: it may be missing, but not where said."""
    said = os.environ.get("MEMPLAN_SHARED")
    folder = Path(said) if said else REPOSITORY.parent / "shared"
    if folder.is_dir():
        return folder
    if said:
        pytest.fail(f"MEMPLAN_SHARED is {said}, and there is no such folder", pytrace=False)
    return None


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = shared_folder()
    if folder is None:
        pytest.skip("no shared files beside the checkout; MEMPLAN_SHARED says where they are")
    return folder


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """A program that is not rewritten fails the test."""
    import memplan

    with warnings.catch_warnings():
        warnings.simplefilter("error", memplan.FallbackWarning)
        yield
