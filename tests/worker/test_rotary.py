"""Rotary angles are exact far out, whatever the model's dtype."""

import pytest
import torch
from worker_rig import start_runner, write_random_llama

from diptych.models.config import rotary_frequencies
from diptych.models.llama import rotary_angles
from diptych.models.registry import read_config

POSITIONS = [0, 1, 255, 256, 257, 4095, 15962, 131071]


def config(**rope):
    return read_config(
        {
            "architectures": ["LlamaForCausalLM"],
            **{"vocab_size": 8, "hidden_size": 128, "intermediate_size": 8, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "head_dim": 64, "rope_theta": 100000.0, **rope},
        }
    )


@pytest.mark.parametrize("position", POSITIONS)
def test_angles_equal_float64(position):
    cosine, sine = rotary_angles(torch.tensor([position]), torch.tensor(rotary_frequencies(config())))
    assert cosine.dtype == sine.dtype == torch.float32
    exponents = torch.arange(0, 64, 2, dtype=torch.float64) / 64
    angles = position * 100000.0**-exponents
    assert (cosine[0] - angles.cos()).abs().max() < 1e-2
    assert (sine[0] - angles.sin()).abs().max() < 1e-2


def test_a_bfloat16_model_keeps_float32_frequencies(tmp_path):
    write_random_llama(tmp_path)
    model = start_runner(tmp_path, dtype="bfloat16").executors.model
    assert model.weights.embedding.dtype == torch.bfloat16
    assert model.frequencies.dtype == torch.float32


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.5},
        {
            **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=["linear", "llama3"],
)
def test_scaled_frequencies_equal_those_of_transformers(rope):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64, rope_parameters={**rope, "rope_theta": 5e5}
    )
    wanted, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, torch.device("cpu"))
    for spelling in ({"rope_parameters": {**rope, "rope_theta": 5e5}}, {"rope_scaling": rope, "rope_theta": 5e5}):
        assert torch.allclose(torch.tensor(rotary_frequencies(config(**spelling))), wanted, rtol=1e-6)
