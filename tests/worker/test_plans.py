"""Step plans are checked before anything runs: a bad entry fails loudly and touches nothing."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from worker_rig import BLOCK, KERNELS, VOCABULARY, Schedule, poison, start_either, step_counts, write_random_llama

from diptych.worker.plan import PLACEHOLDER, PlanError, Sizes
from diptych.worker.runner import ModelRunner
from diptych.worker.step import RowState
from diptych.worker.synthetic_step import SyntheticStep

SIZES = Sizes(num_blocks=50, block_size=4, max_running=3, max_model_len=22, max_tokens=16, vocabulary=10)


@pytest.fixture(scope="module", params=KERNELS)
def runner(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    write_random_llama(folder)
    return start_either(request.param, folder)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def deltas(*changes):
    step = SyntheticStep([(0, 0, [1])], 0, sampled=False)
    step.arrays["delta_rows"] = np.array([row for row, _, _ in changes], dtype=np.int32)
    step.arrays["delta_starts"] = np.array([start for _, start, _ in changes], dtype=np.int32)
    step.arrays["delta_counts"] = np.array([len(blocks) for _, _, blocks in changes], dtype=np.int32)
    step.arrays["delta_blocks"] = np.array([block for _, _, blocks in changes for block in blocks], dtype=np.int32)
    return step


def test_block_table_deltas_apply_in_order():
    state = RowState(SIZES, torch.device("cpu"))
    state.apply_deltas(deltas((1, 0, [5, 6, 7]), (2, 4, [9]), (1, 1, [8]), (0, 2, [])))
    assert state.tables.tolist() == [[0] * 6, [5, 8, 7, 0, 0, 0], [0, 0, 0, 0, 9, 0]]
    state.reset()
    assert not state.tables.any()


@pytest.mark.parametrize(
    "change",
    [(3, 0, [1]), (-1, 0, [1]), (0, 6, [1]), (0, -1, [1]), (0, 4, [1, 2, 3]), (0, 0, [50]), (0, 0, [-1])],
)
def test_a_delta_out_of_range_raises_and_changes_nothing(change):
    state = RowState(SIZES, torch.device("cpu"))
    with pytest.raises(PlanError, match="delta_"):
        state.apply_deltas(deltas((1, 0, [5]), change))
    assert not state.tables.any()


def test_deltas_that_bring_another_number_of_blocks_are_refused():
    step = deltas((0, 0, [1, 2]))
    step.arrays["delta_blocks"] = step.arrays["delta_blocks"][:1]
    with pytest.raises(PlanError, match="announce 2 blocks and bring 1"):
        RowState(SIZES, torch.device("cpu")).apply_deltas(step)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_ids", VOCABULARY),
        ("token_ids", -2),
        ("positions", 128),
        ("positions", -1),
        ("slots", 1 << 40),
        ("slots", -1),
        ("rows", 8),
        ("sequence_lengths", 129),
        ("sequence_lengths", 0),
        ("sampling_tokens", 5),
        ("sampling_rows", 8),
    ],
)
def test_a_value_out_of_range_raises_before_any_kernel(runner, name, value):
    schedule = Schedule(runner)
    step = schedule.step([], [(schedule.add(0, range(5)), 5)])
    step.arrays[name] = step.arrays[name].copy()
    step.arrays[name][-1] = value
    before = step_counts(runner)
    with pytest.raises(
        PlanError, match=rf"{name} from .* to .* in a plan: allowed 0|{name} from .* allowed -1|{name} from"
    ):
        runner.run(step)
    assert step_counts(runner) == before


def test_a_placeholder_is_the_last_sampled_id_of_its_row(runner):
    def second_token(placeholder):
        schedule = Schedule(runner)
        request = schedule.add(2, range(7))
        schedule.run([], [(request, 7)])
        step = schedule.step([request], [])
        if placeholder:
            step.arrays["token_ids"] = np.array([PLACEHOLDER], dtype=np.int32)
        return runner.run(step).ids.tolist()

    assert second_token(placeholder=True) == second_token(placeholder=False)


def test_a_placeholder_in_a_prefill_row_is_refused(runner):
    schedule = Schedule(runner)
    step = schedule.step([], [(schedule.add(0, [1, PLACEHOLDER, 3]), 3)])
    with pytest.raises(PlanError, match="placeholder stands among prefill tokens"):
        runner.run(step)


def test_more_continuations_than_there_are_ids_are_refused(runner):
    schedule = Schedule(runner)
    step = schedule.step([], [(schedule.add(0, range(5)), 5)])
    step.arrays["logprobs"] = np.array([10**6], dtype=np.int32)
    with pytest.raises(PlanError, match="logprobs"):
        runner.run(step)


@pytest.mark.parametrize(
    ("copy", "named"),
    [
        ([1, 2, 3], "four make a copy"),
        ([1, 0, 1, 0], r"destination|block copy \[1, 0"),
        ([1, 2, BLOCK + 1, 0], "tokens"),
        ([1, 2, 1, 1], r"kind|block copy \[1, 2, 1, 1\]"),
    ],
)
def test_block_copies_that_are_none_within_the_pool_are_refused(runner, copy, named):
    schedule = Schedule(runner)
    step = schedule.step([], [(schedule.add(0, range(5)), 5)])
    step.arrays["block_copies"] = np.array(copy, dtype=np.int32)
    with pytest.raises(PlanError, match=named):
        runner.run(step)


def test_a_block_is_copied_before_anything_is_computed(runner):
    """Of the reference; the native worker's pool is seen by tests in Rust."""
    if not isinstance(runner, ModelRunner):
        return
    schedule = Schedule(runner)
    step = schedule.step([], [(schedule.add(0, range(5)), 5)])
    storage = runner.executors.pool.storage
    storage[:, :, :, 7] = 2.5
    step.arrays["block_copies"] = np.array([7, 9, BLOCK - 1, 0], dtype=np.int32)
    runner.run(step)
    assert bool((storage[:, :, :, 9] == 2.5).all())


def test_more_tokens_than_planned_for_are_refused(runner):
    step = SyntheticStep([(0, 0, [1] * 100), (1, 0, [1] * 100), (2, 0, [1] * 100)], 0, sampled=False)
    step.arrays["slots"] = np.zeros(300, dtype=np.int64)
    with pytest.raises(PlanError, match=r"a step of 300 tokens: .*1 to 256"):
        runner.run(step)


@pytest.mark.parametrize("chunk", [2, 256])
def test_penalties_do_not_depend_on_what_was_computed_this_time(runner, chunk):
    """Greedy with penalties: chunked, whole, and from a prompt that was computed before."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]

    def generate(chunk):
        schedule = Schedule(runner)
        request = schedule.add(1, prompt)
        while len(request.output) < 10:
            step = schedule.step([], [(request, min(chunk, len(request.tokens) - request.computed))])
            history = [len(prompt), len(request.output), *request.tokens]
            step.arrays["side"] = np.array(history, dtype=np.uint32)
            for name, value in (("repetition_penalty", 1.3), ("presence_penalty", 1.0), ("frequency_penalty", 1.0)):
                step.arrays[name][:] = value
            step.arrays["penalty_offset"][:] = 0
            result = runner.run(step)
            request.computed += step.num_tokens
            request.tokens += result.ids.tolist()
        return request.output

    wanted = generate(11)
    assert generate(chunk) == wanted
    plain = Schedule(runner).generate([prompt], 10, 11)[0]
    assert plain != wanted


@pytest.mark.parametrize("kernels", KERNELS)
def test_ids_past_the_tokenizer_are_never_sampled(tmp_path, kernels):
    """A vocabulary padded in the checkpoint: the padding's logits are the largest, and are not looked at."""
    write_random_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"][90:] = 100 * tensors["lm_head.weight"][90:].sign()
    save_file(tensors, tmp_path / "model.safetensors")
    [output] = Schedule(start_either(kernels, tmp_path, vocabulary=90)).generate([list(range(6))], 20, 16)
    assert max(output) < 90


def test_a_row_of_nan_fails_alone(runner):
    schedule = Schedule(runner)
    requests = [schedule.add(row, range(row, row + 6)) for row in range(4)]

    def prefill(some):
        for request in some:
            request.computed = 0
        result = runner.run(schedule.step([], [(request, 6) for request in some]))
        for request in some:
            request.computed = 6
        return result

    wanted = prefill(requests)
    for request in requests:
        request.tokens.append(1)
    clean = runner.run(schedule.step(requests, []))
    poison(runner)
    others = [0, 2, 3]
    prefill([requests[row] for row in others])
    broken = runner.run(schedule.step(requests, []))
    assert wanted.status.tolist() == clean.status.tolist() == [0, 0, 0, 0]
    assert broken.status.tolist() == [0, 1, 0, 0]
    assert broken.ids[others].tolist() == clean.ids[others].tolist()
