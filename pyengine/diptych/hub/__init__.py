"""Where models come from: a known name, a local folder, or a Hugging Face id, all ending in one folder on disk."""

from diptych.hub.known import KNOWN_MODELS, KnownModel
from diptych.hub.pull import pull
from diptych.hub.quantize import WEIGHT_FORMATS, quantize
from diptych.hub.resolve import resolve_model

__all__ = ["KNOWN_MODELS", "WEIGHT_FORMATS", "KnownModel", "pull", "quantize", "resolve_model"]
