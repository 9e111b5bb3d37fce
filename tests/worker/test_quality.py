"""int8 costs next to nothing. The whole text and every format: `make quality`."""

from pathlib import Path

import pytest
from format_quality import Variant, encode, load, measure

from diptych.hub.pull import pull
from diptych.worker.arithmetic import choose_dtype, cpu_flags

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

TEXT = Path(__file__).parents[2] / "bench/data/kjv.txt"
# Share of perplexity.
BOUND = 0.005


def test_int8_is_not_seen_to_cost_more_than_half_a_percent_of_perplexity() -> None:
    """On so little text a cost is seen where it is beyond twice its standard error."""
    folder = pull("smollm2-135m")
    arithmetic, _ = choose_dtype("auto", "cpu", "bfloat16", cpu_flags())
    pairs = [("bfloat16", "bfloat16"), ("int8", "bfloat16"), ("int8-g32", "bfloat16"), ("bfloat16", "int8")]
    variants = [Variant(weights, kv, arithmetic) for weights, kv in pairs]
    ids = encode(folder, TEXT.read_text(), 512)
    *_, scores = measure(variants, load(folder, variants, 2), ids, 2)
    base = scores[0]
    assert 5.0 < base.perplexity < 60.0
    assert base.divergence == 0.0 and base.agreement == 1.0
    for score in scores[1:]:
        cost, error = score.cost(base)
        assert cost - 2 * error <= BOUND, f"{score.variant}: {cost:.3%} ± {error:.3%}"
        assert 0.0 < score.divergence < 0.02, str(score.variant)
        assert score.agreement > 0.9, str(score.variant)
