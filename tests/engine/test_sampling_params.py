"""SamplingParams: the ranges of the conventions, checked for every field, told all together."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import SamplingParams
from diptych.errors import InvalidParameterError, RequestError
from diptych.params import params_json, params_problems
from diptych.requests import Prompt

FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, 1e-12, 1e308, 2.0, 100.0])


def accepts(**settings: Any) -> bool:
    return not params_problems(SamplingParams(**settings), vocabulary=100)


@given(FLOATS)
def test_ranges_of_floats_hold_and_nan_and_infinity_are_outside_all_of_them(value: float) -> None:
    assert accepts(temperature=value) == (0 <= value <= 100)
    assert accepts(top_p=value) == (0 < value <= 1)
    assert accepts(min_p=value) == (0 <= value <= 1)
    assert accepts(cache_ttl=value) == (0 <= value <= 366 * 86_400)
    assert accepts(presence_penalty=value) == (-2 <= value <= 2)
    assert accepts(frequency_penalty=value) == (-2 <= value <= 2)
    assert accepts(repetition_penalty=value) == (1.2e-38 < value < 3.4e38)
    assert accepts(target_itl_ms=value) == (0.001 <= value <= 3_600_000)
    assert accepts(logit_bias={5: value}) == (-100 <= value <= 100)
    assert accepts(timeout=value) == accepts(ttft_timeout=value) == (0 < value <= 1e9)


@given(st.integers(-(2**70), 2**70) | st.integers(-3, 120))
def test_ranges_of_integers_hold(value: int) -> None:
    assert accepts(max_tokens=value) == (1 <= value < 2**31)
    assert accepts(max_tokens=None, min_tokens=value) == (0 <= value < 2**31)
    assert accepts(max_tokens=50, min_tokens=value) == (0 <= value <= 50)
    assert accepts(top_k=value) == (-1 <= value < 2**31)
    assert accepts(cache_retention=value) == (0 <= value <= 3)
    assert accepts(seed=value) == (-(2**63) <= value < 2**63)
    assert accepts(priority=value) == (0 <= value <= 255)
    assert accepts(stop_token_ids=[value]) == (0 <= value < 100)
    assert accepts(logit_bias={value: 1.0}) == (0 <= value < 100)


@pytest.mark.parametrize(
    ("salt", "passes"), [("", True), ("x" * 512, True), ("ü" * 256, True), ("ü" * 257, False), ("\ud800", False)]
)
def test_a_cache_salt_is_at_most_512_bytes_of_utf_8(salt: str, passes: bool) -> None:
    assert accepts(cache_salt=salt) == passes


@pytest.mark.parametrize("name", ["temperature", "top_p", "max_tokens", "seed", "stop", "logit_bias", "ignore_eos"])
@pytest.mark.parametrize("value", ["1", {}, [1], object(), 1.5, True])
def test_a_wrong_type_is_a_problem_of_that_field_and_no_exception(name: str, value: Any) -> None:
    legal = {("temperature", 1.5), ("ignore_eos", True)}
    found = params_problems(SamplingParams(**{name: value}))
    if (name, value) in legal if isinstance(value, int | float) else (name, value) == ("logit_bias", {}):
        assert found == []
    else:
        assert found, f"{name}={value!r} passed"
        assert all(line.startswith(name) for line in found)


@pytest.mark.parametrize(
    ("stop", "told"),
    [
        ([""], "empty string"),
        (["a", ""], "empty string"),
        (["x"] * 129, "at most 128"),
        (["é" * 40_000], "at most 65536"),
        (["\ud83d"], "surrogate"),
        ("text", "Expected `array`"),
    ],
)
def test_stop_strings_out_of_bounds_are_refused(stop: Any, told: str) -> None:
    with pytest.raises(InvalidParameterError, match=told):
        SamplingParams(stop=stop).validate()


def test_stop_strings_at_the_bounds_pass() -> None:
    SamplingParams(stop=["x" * 512] * 128).validate()
    SamplingParams(stop=["é", "e\u0301", "👩‍👧"]).validate()
    SamplingParams(stop=[]).validate()


def test_all_problems_are_one_error_of_bounded_size() -> None:
    params = SamplingParams(
        max_tokens=0, temperature=math.nan, top_p=0, top_k=-2, seed=2**63, stop=[""], logit_bias={-1: 101.0}
    )
    with pytest.raises(InvalidParameterError) as raised:
        params.validate(vocabulary=10)
    assert isinstance(raised.value, RequestError)
    assert len(raised.value.problems) == 8
    for name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logit_bias"):
        assert name in raised.value.message
    json.dumps(raised.value.details, allow_nan=False)
    huge = SamplingParams(stop_token_ids=list(range(100, 100_000)))
    with pytest.raises(InvalidParameterError) as raised:
        huge.validate(vocabulary=100)
    assert len(raised.value.message) < 300


@given(
    st.builds(
        SamplingParams,
        max_tokens=st.none() | st.integers(1, 1000),
        temperature=st.floats(0, 100),
        top_k=st.integers(-1, 1000),
        top_p=st.floats(0.001, 1),
        seed=st.none() | st.integers(-(2**63), 2**63 - 1),
        logit_bias=st.dictionaries(st.integers(0, 99), st.floats(-100, 100), max_size=4),
        stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4),
        ignore_eos=st.booleans(),
    )
)
def test_the_core_reads_every_setting_as_it_was_given(params: SamplingParams) -> None:
    params.validate(vocabulary=100)
    told = json.loads(params_json(params, Prompt("x")))
    assert told.pop("add_special_tokens") is True and told.pop("max_tool_calls") is None
    assert told.pop("mean_logprob") is False
    assert told.pop("logit_bias") == [[token, params.logit_bias[token]] for token in sorted(params.logit_bias)]
    for name, value in told.items():
        expected = getattr(params, name)
        assert value == (list(expected) if isinstance(expected, tuple) else expected)
