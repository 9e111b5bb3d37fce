"""Logits and sampling rows of every kind, over a tiny vocabulary."""

from hypothesis import strategies as st
from slow_sampler import Row

VOCABULARY = 24
NAN, INF = float("nan"), float("inf")
LEVELS = st.sampled_from([-INF, -9.0, -1.5, -0.25, -0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 6.0])
LOGITS = st.lists(LEVELS | st.floats(-8, 8, width=32), min_size=VOCABULARY, max_size=VOCABULARY)
HISTORY = st.lists(st.integers(-2, VOCABULARY + 3), max_size=12)
ROWS = st.builds(
    Row,
    temperature=st.sampled_from([0.0, -0.0, 1e-9, 1e-5, 1e-3, 0.3, 1.0, 2.0, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 7, VOCABULARY - 1, VOCABULARY, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.75, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5, 2.0]),
    frequency_penalty=st.sampled_from([-1.0, 0.0, 0.25]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    seed=st.integers(0, 2**64 - 1),
    output_index=st.integers(0, 5000),
    choice_index=st.integers(0, 3),
    prompt=st.none() | HISTORY,
    output=HISTORY,
    bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, -1.0, 0.5, 100.0]), max_size=3),
)
BATCH = st.lists(st.tuples(LOGITS, ROWS), min_size=1, max_size=6)
