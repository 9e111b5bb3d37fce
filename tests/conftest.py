"""Two hypothesis profiles: the quick one by default, the thorough one with HYPOTHESIS_PROFILE=thorough.

Packed weights of the tests' models go to a cache of the session's own; fetched models stay in the user's.
"""

import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from diptych.cache_folder import cache_root

settings.register_profile(
    "quick", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    models = cache_root() / "models"
    models.mkdir(parents=True, exist_ok=True)
    cache = tmp_path_factory.mktemp("cache") / "diptych"
    cache.mkdir()
    (cache / "models").symlink_to(models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache.parent))
        yield
    shutil.rmtree(cache / "packed", ignore_errors=True)
