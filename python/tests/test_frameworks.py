"""``memplan.jit`` in the frameworks of docs/frameworks.md, in four ways: those that are installed."""

import functools
import sys
import warnings
from typing import Any

import pytest
from conftest import REPOSITORY

import memplan

sys.path.insert(0, str(REPOSITORY / "python" / "benches"))
import frameworks


@pytest.fixture(autouse=True)
def no_fallback() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", memplan.FallbackWarning)
        warnings.simplefilter("ignore", memplan.LimitWarning)
        yield


@pytest.mark.parametrize("name", frameworks.STEPS)
def test_four_ways(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "ROWS", 512)
    monkeypatch.setattr(frameworks, "X", frameworks.X[:512])
    make = frameworks.STEPS[name]
    try:
        make(frameworks.nothing)
    except ImportError as error:
        pytest.skip(f"not installed: {error}")
    before, loss = frameworks.measured(make, lambda step, jit, options: jit(step, **options), frameworks.nothing)
    limited = functools.partial(frameworks.ours, memory_limit=int(before * 2**19))
    ways = {
        "outside": (frameworks.ours, frameworks.nothing),
        "inside of another jit": (frameworks.within, frameworks.nothing),
        "with a print": (frameworks.ours, frameworks.prints),
        "with a limit": (limited, frameworks.nothing),
    }
    found = {way: frameworks.measured(make, *how) for way, how in ways.items()}
    assert {way: size < 0.8 * before for way, (size, _) in found.items()} == dict.fromkeys(ways, True), found
    assert [loss_of_way for _, loss_of_way in found.values()] == pytest.approx([loss] * 4, rel=1e-4)
