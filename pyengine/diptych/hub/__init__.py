"""Where models come from: a known name, a local folder, or a Hugging Face id, all ending in one folder on disk."""

from diptych.hub.known import KNOWN_MODELS, KnownModel
from diptych.hub.pull import pull
from diptych.hub.resolve import resolve_model

__all__ = ["KNOWN_MODELS", "KnownModel", "pull", "resolve_model"]
