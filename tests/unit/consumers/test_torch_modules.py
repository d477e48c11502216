"""Tests of `ps.torch`: the same training as torch's own modules and optimizers, over rows that are looked up and gradients that are
published."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn import functional

import paramstream as ps
from paramstream.events.arrays import as_torch
from paramstream.tiers.budget import Budget
from paramstream.tiers.rows import InitSpec, OptimizerSpec, RowSpec, RowTable

DIM = 4
IDS = 12
SETTINGS = {
    "sgd": {"lr": 0.1},
    "adagrad": {"lr": 0.1, "eps": 1e-10, "initial_accumulator_value": 0.0},
}


class Stream:
    """A table as replica and publisher show it; what is published is applied when it is waited for, or by `apply`."""

    topic = "model"

    def __init__(self, kind: str = "sgd", dtype: str = "float32", init: float | None = None) -> None:
        first = InitSpec("normal", {"std": 1.0}, seed=3) if init is None else InitSpec("constant", {"value": init})
        spec = RowSpec(DIM, dtype, OptimizerSpec(kind, SETTINGS[kind]), first)
        self.rows = RowTable("users", spec, Budget(1 << 24))
        self.waiting: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        self.calls: list[NDArray[np.int64]] = []
        self.applied = 0
        self.lost = set[int]()
        self.asked: list[NDArray[np.int64]] = []

    def lookup(
        self, table: str, keys: Any, return_found: bool = False, topic: str | None = None, *, device: Any = None
    ) -> torch.Tensor:
        assert (table, topic) == ("users", "model")
        self.asked.append(keys)
        values = self.rows.lookup(keys)[0]
        return as_torch(values.reshape(-1).view(np.uint8), values.dtype.name, values.shape)

    def publish_gradients(
        self, table: str, keys: Any, grads: Any, nonfinite: str = "refuse", *, timeout: float = 30.0
    ) -> Any:
        if nonfinite == "refuse" and not torch.isfinite(grads).all():
            raise ps.InvalidEvent("a gradient is not finite")
        self.calls.append(keys)
        self.waiting.append((keys, grads.numpy().copy()))
        return len(self.calls)

    def wait(self, target: Any, timeout: float = 30.0) -> None:
        if target in self.lost:
            raise ps.EventLost("the log does not have it")
        self.apply(target)

    def apply(self, up_to: int) -> None:
        while self.applied < up_to:
            self.rows.apply(*self.waiting[self.applied], position=self.applied + 1, images=False)
            self.applied += 1

    def weight(self, count: int = IDS) -> torch.Tensor:
        """Rows 0 to `count` - 1."""
        return torch.from_numpy(self.rows.lookup(np.arange(count, dtype=np.int64))[0])


def torch_optimizer(kind: str, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1) if kind == "sgd" else torch.optim.Adagrad(parameters, lr=0.1)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).pow(2).sum()


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_an_embedding_learns_what_the_one_of_torch_learns(kind: str) -> None:
    stream = Stream(kind)
    ours = ps.torch.Embedding(stream, stream, "users")
    theirs = torch.nn.Embedding(IDS, DIM, sparse=True)
    theirs.weight.data.copy_(stream.weight())
    optimizer = torch_optimizer(kind, [theirs.weight])
    chosen = torch.Generator().manual_seed(1)
    for _ in range(8):
        ids = torch.randint(0, IDS, (3, 5), generator=chosen)
        loss_of(ours(ids)).backward()
        optimizer.zero_grad()
        loss_of(theirs(ids)).backward()
        with torch.sparse.check_sparse_tensor_invariants():
            optimizer.step()
    ours.wait()
    assert ours.published == 8
    torch.testing.assert_close(stream.weight(), theirs.weight.data)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_learns_what_the_one_of_torch_learns(mode: str) -> None:
    stream = Stream()
    ours = ps.torch.EmbeddingBag(stream, stream, "users", mode=mode, padding_idx=2)
    theirs = torch.nn.EmbeddingBag(IDS, DIM, mode=mode, padding_idx=2)
    theirs.weight.data.copy_(stream.weight())
    optimizer = torch_optimizer("sgd", [theirs.weight])
    chosen = torch.Generator().manual_seed(2)
    for step in range(8):
        ids = torch.randint(0, IDS, (4, 3) if step % 2 else (9,), generator=chosen)
        offsets = None if step % 2 else torch.tensor([0, 4, 4])
        loss_of(ours(ids, offsets)).backward()
        optimizer.zero_grad()
        loss_of(theirs(ids, offsets)).backward()
        optimizer.step()
    ours.wait()
    untouched = torch.arange(IDS) != 2
    torch.testing.assert_close(stream.weight()[untouched], theirs.weight.data[untouched])
    assert 2 not in np.concatenate(stream.calls), "padding gets no gradient"


bags = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4)


@settings(max_examples=25)
@given(
    bags=bags, mode=st.sampled_from(["sum", "mean", "max"]), padding=st.none() | st.integers(0, 5), last=st.booleans()
)
def test_bags_of_any_shape_are_those_of_torch(
    bags: list[list[int]], mode: str, padding: int | None, last: bool
) -> None:
    """Ids far apart, negative too, stand where torch has its small numbers."""
    far = np.array([-1, 2**63 - 1, 0, -(2**63), 7, 10**12])
    stream = Stream()
    flat = np.array([each for bag in bags for each in bag], np.int64)
    ends = np.cumsum([0, *map(len, bags)])
    offsets = torch.from_numpy(ends if last else ends[:-1])
    weights = torch.linspace(0.5, 2, len(flat)) if mode == "sum" else None
    ours = ps.torch.EmbeddingBag(
        stream, stream, "users", mode=mode, include_last_offset=last,
        padding_idx=None if padding is None else int(far[padding]),
    )  # fmt: skip
    weight = torch.from_numpy(stream.rows.lookup(far)[0]).requires_grad_()
    expected = functional.embedding_bag(
        torch.from_numpy(flat), weight, offsets, mode=mode, per_sample_weights=weights, include_last_offset=last,
        padding_idx=padding,
    )  # fmt: skip
    result = ours(torch.from_numpy(far[flat]), offsets, weights)
    torch.testing.assert_close(result, expected)
    loss_of(result).backward()
    loss_of(expected).backward()
    assert weight.grad is not None
    for keys, grads in stream.waiting:
        places = [far.tolist().index(key) for key in keys.tolist()]
        torch.testing.assert_close(torch.from_numpy(grads), weight.grad[places])
    assert ours.published == (0 if set(flat.tolist()) <= {padding} else 1)


def test_per_sample_weights_get_their_gradient() -> None:
    stream = Stream()
    ours = ps.torch.EmbeddingBag(stream, stream, "users", mode="sum")
    weights = torch.ones(2, 2, requires_grad=True)
    ours(torch.tensor([[1, 2], [1, 1]]), per_sample_weights=weights).sum().backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad[0], stream.weight()[[1, 2]].sum(1))


def test_an_id_that_is_padding_gives_zeros_and_is_never_looked_up() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users", padding_idx=-1)
    result = ours(torch.tensor([[3, -1], [-1, 3]]))
    assert not result[0, 1].any()
    assert result.shape == (2, 2, DIM)
    result.sum().backward()
    assert [keys.tolist() for keys in stream.asked[1:]] == [[3]]
    assert [keys.tolist() for keys in stream.calls] == [[3]]


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_batch_without_ids_has_a_result_without_rows(shape: tuple[int, ...]) -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    assert ours(torch.empty(shape, dtype=torch.int64)).shape == (*shape, DIM)


def test_ids_of_32_bits_are_ids_and_floats_are_not() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, None, "users", topic="model")
    torch.testing.assert_close(ours(torch.tensor([1, 2], dtype=torch.int32)), stream.weight()[1:3])
    with pytest.raises(ps.InvalidEvent, match=r"not torch\.float32"):
        ours(torch.tensor([1.0]))


# --- when gradients are published ---------------------------------------------------------------------------------------------


def test_a_module_that_is_used_twice_publishes_once_a_backward() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    first, second = ours(torch.tensor([1, 2])), ours(torch.tensor([2, 3]))
    (first.sum() + second.sum()).backward()
    assert len(stream.calls) == 1
    keys, grads = stream.waiting[0]
    assert {key: grads[keys == key].sum() for key in (1, 2, 3)} == {1: DIM, 2: 2 * DIM, 3: DIM}


def test_a_key_that_repeats_in_a_batch_is_summed_before_it_is_published() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    ours(torch.tensor([5, 5, 5])).sum().backward()
    keys, grads = stream.waiting[0]
    assert keys.tolist() == [5]
    assert grads.tolist() == [[3.0] * DIM]


def test_a_graph_that_is_kept_publishes_the_same_gradients_each_time() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    loss = ours(torch.tensor([5])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert [grads.tolist() for _, grads in stream.waiting] == [[[1.0] * DIM]] * 2


def test_gradients_that_are_asked_for_by_name_publish_nothing() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    weight = torch.ones(DIM, requires_grad=True)
    torch.autograd.grad((ours(torch.tensor([5])) * weight).sum(), [weight])
    assert stream.calls == []


def test_with_an_optimizer_attached_gradients_wait_for_its_step_and_go_together() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    head = torch.nn.Linear(DIM, 1)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    ours.attach(optimizer)
    for _ in range(3):
        head(ours(torch.tensor([1, 2]))).sum().backward()
    assert stream.calls == []
    optimizer.step()
    assert len(stream.calls) == 1
    assert len(stream.calls[0]) == 6
    optimizer.step()
    assert len(stream.calls) == 1, "nothing was kept"


def test_discarded_gradients_are_not_published() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    ours.attach(optimizer)
    ours(torch.tensor([1])).sum().backward()
    ours.discard()
    assert ours.step() is None
    assert stream.calls == []


def test_the_receipt_of_the_last_gradients_is_there_to_be_waited_for() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users", staleness=None)
    assert ours.receipt is None
    for _ in range(2):
        ours(torch.tensor([1])).sum().backward()
    receipt = ours.receipt
    assert receipt is not None
    stream.wait(receipt)
    assert stream.applied == 2


def test_nothing_is_published_where_nothing_is_trained() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    with torch.no_grad():
        assert not ours(torch.tensor([1])).requires_grad
    ours.eval()
    assert not ours(torch.tensor([1])).requires_grad


def test_without_a_publisher_a_module_only_infers() -> None:
    stream = Stream()
    ours = ps.torch.EmbeddingBag(stream, None, "users", topic="model", mode="sum")
    assert not ours(torch.tensor([[1, 2]])).requires_grad
    assert "inference only" in repr(ours)
    with pytest.raises(ps.InvalidEvent, match="without a publisher"):
        ours.step()


@pytest.mark.parametrize(("staleness", "seen"), [(0, 4), (1, 3), (None, 0)])
def test_a_forward_waits_for_all_but_so_many_of_its_own_publishes(staleness: int | None, seen: int) -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users", staleness=staleness)
    for _ in range(4):
        ours(torch.tensor([1])).sum().backward()
    ours(torch.tensor([1]))
    assert stream.applied == seen


def test_gradients_that_were_lost_are_told_by_the_next_forward_and_training_goes_on() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    ours(torch.tensor([1])).sum().backward()
    stream.lost = {1}
    with pytest.raises(ps.EventLost):
        ours(torch.tensor([1]))
    ours(torch.tensor([1])).sum().backward()
    assert ours.published == 2


def test_gradients_are_scaled_back_when_they_are_published() -> None:
    stream, scale = Stream(), 8.0
    ours = ps.torch.Embedding(stream, stream, "users", grad_scale=lambda: 1 / scale)
    (ours(torch.tensor([1])).sum() * scale).backward()
    assert stream.waiting[0][1].tolist() == [[1.0] * DIM]


def test_gradients_come_back_in_the_dtype_of_the_table_whatever_the_result_is() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users", dtype=torch.bfloat16)
    result = ours(torch.tensor([1, 1]))
    assert result.dtype == torch.bfloat16
    result.sum().backward()
    assert stream.waiting[0][1].dtype == np.float32


def test_a_table_of_bfloat16_is_looked_up_and_trained() -> None:
    stream = Stream(dtype="bfloat16", init=1.0)
    ours = ps.torch.Embedding(stream, None, "users", topic="model")
    assert ours(torch.tensor([1])).tolist() == [[1.0] * DIM]
    assert ours(torch.tensor([1])).dtype == torch.bfloat16


def test_gradients_that_are_not_finite_are_refused_in_backward_or_skipped_and_counted_or_passed() -> None:
    stream = Stream()
    strict = ps.torch.Embedding(stream, stream, "users")
    with pytest.raises(ps.InvalidEvent, match="not finite"):
        (strict(torch.tensor([1])) * float("inf")).sum().backward()
    strict(torch.tensor([2])).sum().backward()
    assert [keys.tolist() for keys in stream.calls] == [[2]]
    lenient = ps.torch.Embedding(stream, stream, "users", nonfinite="skip")
    (lenient(torch.tensor([1])) * float("nan")).sum().backward()
    assert (lenient.skipped, lenient.published) == (1, 0)
    careless = ps.torch.Embedding(stream, stream, "users", nonfinite="pass")
    (careless(torch.tensor([3])) * float("nan")).sum().backward()
    assert [keys.tolist() for keys in stream.calls] == [[2], [3]]


def test_after_a_backward_that_failed_the_next_one_publishes() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")

    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("elsewhere")

    other = torch.zeros(1, requires_grad=True)
    result = ours(torch.tensor([1])).sum()
    spoiled = other * 1
    spoiled.register_hook(fail)
    with pytest.raises(RuntimeError, match="elsewhere"):
        (result + spoiled).backward()
    ours(torch.tensor([2])).sum().backward()
    assert 2 in stream.calls[-1]


# --- what a module does besides -------------------------------------------------------------------------------------------------


def test_the_rows_are_no_part_of_a_state_dict_and_a_weight_in_one_is_refused_with_the_way_out() -> None:
    stream = Stream()
    model = torch.nn.Sequential(ps.torch.Embedding(stream, stream, "users"), torch.nn.Linear(DIM, 1))
    assert sorted(model.state_dict()) == ["1.bias", "1.weight"]
    model.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match=r"publisher\.publish_rows\('users', keys, weight\)"):
        model.load_state_dict({**model.state_dict(), "0.weight": torch.zeros(3, DIM)})


def saved(module: object) -> None:
    torch.save(module, io.BytesIO())


@pytest.mark.parametrize("copied", [saved, copy.deepcopy, copy.copy])
def test_a_module_is_neither_pickled_nor_copied(copied: Callable[[object], object]) -> None:
    with pytest.raises(ps.InvalidEvent, match="neither pickled nor copied"):
        copied(ps.torch.Embedding(stream := Stream(), stream, "users"))


@pytest.mark.parametrize(
    ("wrong", "because"),
    [
        ({"staleness": -1}, "staleness=-1"),
        ({"nonfinite": "ignore"}, "nonfinite='ignore'"),
        ({"topic": "other"}, "not 'other'"),
        ({"mode": "median"}, "mode='median'"),
    ],
)
def test_a_setting_that_is_none_is_refused(wrong: dict[str, Any], because: str) -> None:
    stream = Stream()
    with pytest.raises(ps.InvalidEvent, match=because):
        ps.torch.EmbeddingBag(stream, stream, "users", **wrong)


def test_a_name_that_ps_torch_has_not_is_said_to_be_none() -> None:
    with pytest.raises(AttributeError, match="it has Embedding, EmbeddingBag"):
        _ = ps.torch.Embeding


def test_inside_a_compiled_graph_a_module_says_that_it_cannot_be_there() -> None:
    stream = Stream()
    model = torch.nn.Sequential(ps.torch.Embedding(stream, stream, "users"), torch.nn.Linear(DIM, 1))
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(ps.InvalidEvent, match="inside a compiled graph"):
        compiled(torch.tensor([1, 2]))


def test_threads_that_wait_for_the_same_gradients_wait_for_each_once_and_for_all_of_them() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    outputs = [ours(torch.tensor([1])) for _ in range(2)]
    for each in outputs:
        each.sum().backward()
    waited: list[int] = []

    def wait_too(target: Any, timeout: float = 30.0) -> None:
        waited.append(target)
        if len(waited) == 1:
            # Another thread comes, waits for all, and is done before this one.
            other = threading.Thread(target=ours.wait)
            other.start()
            other.join()
        stream.apply(target)

    stream.wait = wait_too  # type: ignore[method-assign]
    ours.wait()
    assert (waited, stream.applied) == ([1, 1, 2], 2)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_backward_that_can_be_derived_again_publishes_its_gradients() -> None:
    stream = Stream()
    ours = ps.torch.Embedding(stream, stream, "users")
    before = stream.weight()[1]
    ours(torch.tensor([1])).pow(2).sum().backward(create_graph=True)
    ours.wait()
    torch.testing.assert_close(stream.weight()[1], before - 0.1 * 2 * before)
