"""One shared service in hash mode, and a folder for those that tests start themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from service_rig import ServiceThread
from tiny_folder import HashOracle, write_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def oracle(model_folder: Path) -> HashOracle:
    return HashOracle(model_folder)


@pytest.fixture(scope="session")
def service(model_folder: Path) -> Iterator[ServiceThread]:
    """Answers at once, each token a hash of the prefix."""
    with ServiceThread(model_folder) as running:
        yield running


@pytest.fixture(scope="session")
def slow_service(model_folder: Path) -> Iterator[ServiceThread]:
    """As `service`, with 20 ms a step and a short write timeout, so that there is time to interfere."""
    with ServiceThread(model_folder, {"write_timeout": 1.0}, script_step_ms=20.0) as running:
        yield running
