"""The tracker that the step tests rest on sees temporaries, and the comparison can fail."""

from __future__ import annotations

import pytest
import step_oracle
import torch
from storage_tracker import StorageEvent, StorageTracker

from memsim.optimizers import StepEvent
from memsim.tensors import TensorSpec


def _alloc(nbytes: int) -> StorageEvent:
    return StorageEvent("alloc", nbytes)


def _free(nbytes: int) -> StorageEvent:
    return StorageEvent("free", nbytes)


def test_it_sees_a_temporary_while_it_lives():
    x = torch.zeros(10)
    with StorageTracker([x]) as tracker:
        x.add_((x * 2) + 1)
    # x * 2 lives until the sum exists: two tensors of 10 float32.
    assert tracker.events == [_alloc(40), _alloc(40), _free(40), _free(40)]
    assert tracker.peak_bytes == 80
    assert tracker.timeline == [40, 80, 40, 0]


def test_it_sees_nothing_where_all_is_in_place_or_a_view():
    x = torch.zeros(10)
    with StorageTracker([x]) as tracker:
        x.mul_(2).view(2, 5).t()[0].add_(1)
    assert tracker.events == []
    assert tracker.peak_bytes == 0


def test_it_sees_a_variable_that_outlives_its_loop():
    x = torch.zeros(10)
    with StorageTracker([x]) as tracker:
        for size in (3, 5):
            y = x[:size] * 2
        assert y.numel() == 5
        del y
    # The second product is made while the first is still bound.
    assert tracker.events == [_alloc(12), _alloc(20), _free(12), _free(20)]


def test_it_counts_a_storage_once_and_until_its_last_view_dies():
    with StorageTracker([]) as tracker:
        x = torch.zeros(8)
        view = x[:2]
        del x
        assert tracker.timeline == [32]
        del view
    assert tracker.timeline == [32, 0]


def test_it_sees_a_number_that_becomes_a_tensor():
    x = torch.zeros(2)
    with StorageTracker([x]) as tracker:
        x.add_(torch.tensor(1.0))
    assert tracker.events == [_alloc(4), _free(4)]


def _event(action: str, key: int, numel: int) -> StepEvent:
    return StepEvent(action, key, TensorSpec((numel,), "float32"), "temporary", "", "")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [_event("alloc", 0, 10), _event("free", 0, 10)],
        [_event("alloc", 0, 10), _event("alloc", 1, 11), _event("free", 0, 10), _event("free", 1, 11)],
        [_event("alloc", 0, 10), _event("free", 0, 10), _event("alloc", 1, 10), _event("free", 1, 10)],
    ],
    ids=["nothing", "one missing", "one larger", "another order"],
)
def test_the_comparison_refuses_other_events(wrong):
    x = torch.zeros(10)
    with StorageTracker([x]) as tracker:
        x.add_((x * 2) + 1)
    right = [_event("alloc", 0, 10), _event("alloc", 1, 10), _event("free", 0, 10), _event("free", 1, 10)]
    step_oracle.assert_same_events(tracker, right)
    with pytest.raises(AssertionError):
        step_oracle.assert_same_events(tracker, wrong)
