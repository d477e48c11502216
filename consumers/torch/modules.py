"""Embedding modules over a table of the stream: rows are looked up in a replica, and their gradients published.

    class Model(torch.nn.Module):
        def __init__(self, rep, pub):
            super().__init__()
            self.users = ps.torch.Embedding(rep, pub, "users")          # was: torch.nn.Embedding(10_000_000, 64)
            self.head = torch.nn.Linear(64, 1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)             # of the head; rows have their table's optimizer
    loss(model(batch)).backward()                                       # publishes the rows' gradients
    optimizer.step()

Every int64 is an id. A row that nobody wrote has the first value that its table gives to its key.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ...errors import InvalidEvent
from ..waits import Accepted
from .hook import GradientHook, GradientPublisher, Nonfinite, Scale, Waiting, check_options

TIMEOUT_S = 30.0


class RowReplica(Waiting, Protocol):
    """The part of a replica that is needed here."""

    def lookup(
        self, table: str, keys: Any, return_found: Literal[False] = False, topic: str | None = None, *,
        device: torch.device | None = None,
    ) -> Any: ...  # fmt: skip


class _Rows(torch.nn.Module):
    """What both modules share: looking rows up as leaves of the graph, and what becomes of their gradients."""

    def __init__(
        self, replica: RowReplica, publisher: GradientPublisher | None, table: str, *, topic: str | None,
        padding_idx: int | None, dtype: torch.dtype | None, staleness: int | None, grad_scale: Scale, nonfinite: Nonfinite,
        timeout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        check_options(staleness, nonfinite)
        if publisher is not None and topic is not None and publisher.topic != topic:
            raise InvalidEvent(f"the publisher is of topic {publisher.topic!r}, not {topic!r}")
        self._replica = replica
        self._topic = topic if publisher is None else publisher.topic
        self._hook = (
            None
            if publisher is None
            else GradientHook(publisher, replica, table, staleness, grad_scale, nonfinite, timeout)
        )
        self.table = table
        self.padding_idx = padding_idx
        self.dtype = dtype
        self.embedding_dim: int = self._look_up(np.empty(0, np.int64), torch.device("cpu")).shape[1]

    # --- gradients --------------------------------------------------------------------------------------------------------------

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Gradients are published when `optimizer` steps, and no more at the end of each backward.

        For loops that step once for several backwards, or whose step a gradient scaler may leave out. Call once.
        """
        self._trained().step_with(optimizer)

    def step(self) -> Accepted | None:
        """Publishes the gradients that are kept, by hand; the receipt, or None where there are none.

        Raises what `publish_gradients` raises: `InvalidEvent` for gradients that are not finite, `BackpressureTimeout`.
        """
        return self._trained().step()

    def discard(self) -> None:
        """Forgets gradients that are kept and were not published, as `zero_grad` does for parameters."""
        self._trained().discard()

    def wait(self) -> None:
        """Blocks until the replica shows all but the last `staleness` publishes of this module. A forward in training does so first."""
        self._trained().wait()

    @property
    def published(self) -> int:
        """How often gradients were published."""
        return self._trained().published

    @property
    def receipt(self) -> Accepted | None:
        """Of the last gradients published, None before the first: what `replica.wait`, or `client.lookup` of anybody, is to have seen."""
        return self._trained().receipt

    @property
    def skipped(self) -> int:
        """How often they were left out because they were not finite."""
        return self._trained().skipped

    def _trained(self) -> GradientHook:
        if self._hook is None:
            raise InvalidEvent(
                "the module was made without a publisher, and only infers", item=self.table, remedy="Hand one in"
            )
        return self._hook

    # --- rows -------------------------------------------------------------------------------------------------------------------

    def _unique_rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Rows of the distinct ids but `padding_idx`; for each id the number of its row; and the number that stands for padding.

        The row of padding is zeros and no leaf. There is at least one row.
        """
        if torch.compiler.is_compiling():
            raise InvalidEvent("rows of a stream cannot be looked up inside a compiled graph", remedy=_COMPILE)
        if ids.dtype not in (torch.int64, torch.int32):
            raise InvalidEvent(f"ids are int64 or int32, not {ids.dtype}", item=self.table)
        flat = ids.detach().reshape(-1).cpu().numpy().astype(np.int64, copy=False)
        keys, inverse = np.unique(flat, return_inverse=True)
        padding = None
        if self.padding_idx is not None or not len(keys):
            is_padding = keys == self.padding_idx if self.padding_idx is not None else np.zeros(0, np.bool_)
            padding = len(keys) - int(np.count_nonzero(is_padding))
            places = np.where(is_padding, padding, np.cumsum(~is_padding) - 1)
            keys, inverse = keys[~is_padding], places[inverse]
        rows = self._leaf(keys, ids.device)
        if padding is not None:
            rows = functional.pad(rows, (0, 0, 0, 1))
        return rows, torch.from_numpy(inverse).to(ids.device).view(ids.shape), padding

    def _leaf(self, keys: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        hook = self._hook if self.training and torch.is_grad_enabled() else None
        if hook is not None:
            hook.wait()
        rows = self._look_up(keys, device)
        if hook is not None:
            rows.requires_grad_()
            if len(keys):
                hook.watch(rows, keys)
        return rows if self.dtype is None else rows.to(self.dtype)

    def _look_up(self, keys: NDArray[np.int64], device: torch.device) -> torch.Tensor:
        rows = self._replica.lookup(self.table, keys, topic=self._topic, device=device)
        assert isinstance(rows, torch.Tensor)
        return rows

    # --- what a module of torch does ----------------------------------------------------------------------------------------------

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        if f"{prefix}weight" in state_dict:
            error_msgs.append(
                f"{prefix}weight: rows of table {self.table!r} are in the stream, and not in a state dict. "
                f"Publish them once: publisher.publish_rows({self.table!r}, keys, weight)"
            )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidEvent(
            "a module over a table of the stream is neither pickled nor copied: it belongs to its replica",
            item=self.table,
            remedy="Make another one where it is needed; its rows are in the stream",
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.table!r}, {self.embedding_dim}{padding}{'' if self._hook else ', inference only'}"


class Embedding(_Rows):
    """`torch.nn.Embedding` over `table`: ids of any shape → (*, dim), on the device of the ids."""

    def __init__(
        self,
        replica: RowReplica,
        publisher: GradientPublisher | None,
        table: str,
        *,
        topic: str | None = None,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
        staleness: int | None = 0,
        grad_scale: Scale = 1.0,
        nonfinite: Nonfinite = "refuse",
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Rows are read in `replica`; their gradients go to `publisher`, or, where it is None, nowhere.

        `topic`: of the table, where the replica follows several and there is no publisher. `padding_idx`: an id (any int64) that gives
        zeros and gets no gradient. `dtype`: of the result, where it is not the table's; gradients come back in the table's.

        In training (`train()`, as a module is at first, with gradients enabled) backward publishes the rows' gradients when it ends,
        in one call; `attach` binds that to an optimizer's step. `staleness`: how many of these publishes a forward may not see yet; it
        waits, up to `timeout` s, for the others. 0: its own gradients are applied before each forward. None: it never waits.
        `grad_scale`: gradients are multiplied with it, or with what it returns: `lambda: 1 / scaler.get_scale()`. `nonfinite`: gradients
        with NaN or infinities are refused, by an error that backward (or `step`) raises; "skip": a step that has any is left out, and
        counted in `skipped`; "pass": they are published like any number.

        Raises `InvalidEvent` where there is no such table, or for a setting that is none.
        """
        super().__init__(
            replica, publisher, table, topic=topic, padding_idx=padding_idx, dtype=dtype, staleness=staleness,
            grad_scale=grad_scale, nonfinite=nonfinite, timeout=timeout,
        )  # fmt: skip

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of `ids`. Blocks as the constructor says, and for a disk where rows lie there."""
        rows, places, _ = self._unique_rows(ids)
        return functional.embedding(places, rows)


class EmbeddingBag(_Rows):
    """`torch.nn.EmbeddingBag` over `table`: bags of ids → (bags, dim), their sum, mean or maximum."""

    def __init__(
        self,
        replica: RowReplica,
        publisher: GradientPublisher | None,
        table: str,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        topic: str | None = None,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
        staleness: int | None = 0,
        grad_scale: Scale = 1.0,
        nonfinite: Nonfinite = "refuse",
        timeout: float = TIMEOUT_S,
    ) -> None:
        """`mode`: "sum" | "mean" | "max". `padding_idx`: an id that no bag counts. All else as of `Embedding`."""
        if mode not in ("sum", "mean", "max"):
            raise InvalidEvent(f"mode={mode!r} is neither 'sum', 'mean' nor 'max'")
        super().__init__(
            replica, publisher, table, topic=topic, padding_idx=padding_idx, dtype=dtype, staleness=staleness,
            grad_scale=grad_scale, nonfinite=nonfinite, timeout=timeout,
        )  # fmt: skip
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Bags of `ids`: rows of a 2-D tensor, or of a flat one from each of `offsets` on. `per_sample_weights`: for mode "sum"."""
        rows, places, padding = self._unique_rows(ids)
        return functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding if self.padding_idx is not None else None,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


_COMPILE = "Leave the module out: torch.compile the parts of the model behind it"
