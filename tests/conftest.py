"""Small problems that every test file shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from browser import Browser, program
from fednag.data.dataset import Dataset
from fednag.runs import choices
from fednag.simulate import tuning

torch.set_num_threads(1)  # tests run in parallel processes

# Under nohup, or behind `&` in a script, these are ignored, and so would be by the runs that tests
# start to interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples every time, so that what passed once passes again; new ones are looked for with
# HYPOTHESIS_PROFILE=explore.
settings.register_profile("fixed", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


# What `make check` runs whatever has changed.
CORE = {
    *("architecture", "compressed_methods", "compression", "config", "keys", "laws", "parts"),
    *("rules", "schedule", "statistics"),
}
FLOWER = ("test_flower", "test_deployment")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks by file, so that nobody has to remember them."""
    for item in items:
        name = item.path.stem
        if name.removeprefix("test_") in CORE:
            item.add_marker("core")
        if name.startswith(FLOWER):
            item.add_marker("flower")
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.fixture(scope="session")
def blobs() -> Dataset:
    """Three noisy classes in four dimensions: small, not separable, float64."""
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(90) % 3
    centres = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    x = centres[y] + torch.randn(90, 4, generator=generator, dtype=torch.float64)
    return Dataset("blobs", x[:75], y[:75], x[75:], y[75:], classes=3)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    executable = program()
    if executable is None:
        pytest.skip("no Chromium here: apt-get install chromium, or set FEDNAG_BROWSER")
    with Browser(executable, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def real_data() -> None:
    """Asked for by tests that read the data sets the user has."""
    if not os.environ.get("FEDNAG_DATA"):
        pytest.skip("FEDNAG_DATA is not set: the real data sets are not here")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands that tests start keep what they timed here, not in the user's cache."""
    os.environ["FEDNAG_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs take their chunk by the rule, and time nothing: how fast they are is not tested."""
    monkeypatch.setattr(tuning, "LEAST_SECONDS", float("inf"))
    monkeypatch.setattr(choices, "cache_folder", lambda: None)


@pytest.fixture(autouse=True)
def _no_real_data(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only tests that say so may see data outside the project."""
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("FEDNAG_DATA", raising=False)
