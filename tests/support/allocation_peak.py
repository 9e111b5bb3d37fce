"""What torch allocates while something runs, to the byte."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocation_peak(run: Callable[[], object]) -> int:
    """The most bytes held at once by tensors allocated during `run`, over what was held before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    if not events:
        raise AssertionError("the profiler recorded no allocation at all")
    return peak
