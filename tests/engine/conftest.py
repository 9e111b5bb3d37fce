"""A small model folder, what the scripted worker says of it, and an engine around that worker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tiny_folder import HashOracle, write_folder

from diptych import AsyncEngine, EngineConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> HashOracle:
    return HashOracle(folder)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(EngineConfig(str(folder), worker="scripted", block_size=4)) as engine:
        yield engine
