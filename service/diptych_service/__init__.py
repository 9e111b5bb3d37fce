"""The OpenAI-compatible microservice: `create_app` for a host of one's own, `diptych serve` for the whole of it."""

__version__ = "0.1.0"

from diptych_service.app import create_app
from diptych_service.config import ServiceConfig

__all__ = ["ServiceConfig", "__version__", "create_app"]
