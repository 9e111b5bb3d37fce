"""Products of packed weights with rows, each format on each instruction set, against float64."""

import json

import gguf
import numpy as np
import pytest

from diptych_core import kernels

SETS = kernels.instruction_sets()
OUTPUTS, INPUTS = 37, 512
generator = np.random.default_rng(5)
WEIGHT = generator.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
ROWS = generator.standard_normal((13, INPUTS)).astype(np.float32)
# Format: arithmetic, and the relative error of a product that rounding its values to it allows.
FORMATS = {
    "f32": [("float32", 1e-6)],
    "bf16": [("float32", 3e-3), ("bfloat16", 5e-3)],
    "f16": [("float32", 4e-4)],
    "int8": [("float32", 2e-2)],
    "q8_0": [("float32", 1e-2)],
    "q4_0": [("float32", 0.15)],
    "q4_1": [("float32", 0.12)],
}
BLOCKS = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}


def product(weight, rows, **options):
    settings = {"inputs": INPUTS, "encoding": "f32", "arithmetic": "float32", "instruction_set": None, **options}
    found = kernels.product(weight.view(np.uint8).reshape(-1), rows.reshape(-1), json.dumps(settings).encode())
    return np.frombuffer(found, dtype=np.float32).reshape(len(rows), -1)


def error_of(found, weight, rows):
    wanted = rows.astype(np.float64) @ weight.astype(np.float64).T
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("format", "arithmetic", "allowed"), [(format, *case) for format, cases in FORMATS.items() for case in cases]
)
def test_a_product_is_that_of_float64_but_for_rounding(name, format, arithmetic, allowed):
    found = product(WEIGHT, ROWS, format=format, arithmetic=arithmetic, instruction_set=name)
    assert found.shape == (13, OUTPUTS)
    assert error_of(found, WEIGHT, ROWS) < allowed


@pytest.mark.parametrize("format", FORMATS)
def test_every_instruction_set_and_number_of_rows_gives_the_same_bits(format):
    for arithmetic, _ in FORMATS[format]:
        wanted = product(WEIGHT, ROWS, format=format, arithmetic=arithmetic, instruction_set="portable")
        for name in SETS:
            for first, last in ((0, 13), (0, 1), (3, 5), (2, 9), (12, 13)):
                found = product(WEIGHT, ROWS[first:last], format=format, arithmetic=arithmetic, instruction_set=name)
                assert found.tobytes() == wanted[first:last].tobytes()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("format", BLOCKS)
def test_blocks_of_gguf_are_multiplied_as_they_are(name, format):
    kind = BLOCKS[format]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if format in ("q4_k", "q6_k"):
        # gguf writes no such blocks: random bytes are some, once their half floats are small numbers.
        encoded = generator.integers(0, 256, (OUTPUTS, INPUTS // block, size), dtype=np.uint8)
        places = (0, 2) if format == "q4_k" else (208,)
        for place in places:
            scales = generator.uniform(0.001, 0.01, encoded.shape[:2]).astype(np.float16)
            encoded[..., place : place + 2] = scales[..., None].view(np.uint8)
        encoded = encoded.reshape(OUTPUTS, -1)
    else:
        encoded = gguf.quants.quantize(WEIGHT, kind)
    meant = gguf.quants.dequantize(encoded, kind).reshape(OUTPUTS, INPUTS)
    found = product(np.ascontiguousarray(encoded), ROWS, encoding=format, format=format, instruction_set=name)
    # What is left is the rounding of the rows to 8 bits.
    assert error_of(found, meant, ROWS) < 1e-2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "q3_k"}, 'format "q3_k" is not known'),
        ({"format": "f32", "instruction_set": "neon"}, 'instruction_set "neon" is not known'),
        ({"format": "f32", "arithmetic": "int"}, 'arithmetic "int" is not known'),
        ({"format": "q8_0", "inputs": 37 * 8}, "multiple of 32 inputs"),
        ({"format": "f32", "surprise": 1}, "surprise"),
    ],
)
def test_what_cannot_be_multiplied_is_refused_by_name(options, words):
    with pytest.raises(kernels.KernelOptionsError, match=words):
        product(WEIGHT, ROWS, **options)
