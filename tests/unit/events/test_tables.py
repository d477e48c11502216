"""What a table is created with: checked when it is made, and one payload whatever way it was given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import paramstream as ps
from paramstream.events.kinds import Initializer, Optimizer, Table
from paramstream.events.tables import definition_of, optimizer_payload
from paramstream.events.validate import check_table


def test_a_table_as_users_describe_it_is_its_payload() -> None:
    given = definition_of("t", 4, "float32", ps.Adam(lr=np.float32(0.5)), ps.Uniform(-1, 1, seed=7), 1.5)  # type: ignore[arg-type]
    adam = Optimizer("adam", {"lr": 0.5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8})
    assert given == Table("t", 4, "float32", adam, Initializer("uniform", {"lo": -1.0, "hi": 1.0}, 7), 1_500_000_000)
    assert definition_of("t", 4, "float32") == Table("t", 4, "float32", init=Initializer("constant", {"value": 0.0}))
    check_table(given)
    assert type(definition_of("t", np.int64(8), "float32").dim) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "optimizer", [ps.SGD(1), ps.Adagrad(), ps.RowwiseAdagrad(0.1, initial_accumulator_value=0.5), ps.Adam()]
)
def test_every_optimizer_is_taken_by_a_table(optimizer: ps.SGD | ps.Adagrad | ps.RowwiseAdagrad | ps.Adam) -> None:
    check_table(definition_of("t", 4, "bfloat16", optimizer, ps.Normal(0.1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.SGD(float("nan")),
        lambda: ps.SGD(-1.0),
        lambda: ps.SGD("0.1"),  # type: ignore[arg-type]
        lambda: ps.SGD(True),
        lambda: ps.SGD(10**400),
        lambda: ps.Adagrad(eps=-1e-9),
        lambda: ps.RowwiseAdagrad(initial_accumulator_value=float("inf")),
        lambda: ps.Adam(beta1=1.0),
        lambda: ps.Adam(beta2=-0.1),
        lambda: ps.Normal(0.0),
        lambda: ps.Normal(1.0, seed=-1),
        lambda: ps.Normal(1.0, seed=1 << 63),
        lambda: ps.Normal(1.0, seed=1.0),  # type: ignore[arg-type]
        lambda: ps.Uniform(1.0, 1.0),
        lambda: ps.Uniform(-1.7e308, 1.7e308),
        lambda: definition_of("t", 1, "float32", ps.SGD),  # type: ignore[arg-type]
        lambda: definition_of("t", 1, "float32", init="zeros"),  # type: ignore[arg-type]
        lambda: definition_of("t", 1, "float32", expire_after=float("nan")),
        lambda: definition_of("t", 1, "float32", expire_after=1e300),
        lambda: check_table(definition_of("t", True, "float32")),
        lambda: check_table(definition_of("t", 4.0, "float32")),  # type: ignore[arg-type]
        lambda: definition_of("", 1, "float32"),
        lambda: check_table(definition_of("t", 1, "int64")),
        lambda: check_table(definition_of("t", 1, "float16", init=1e6)),
        lambda: check_table(Table("t", 1, "float32", Optimizer("sgd", {}))),
        lambda: check_table(Table("t", 1, "float32", Optimizer("sgd", {"lr": 1.0, "momentum": 0.9}))),
        lambda: check_table(Table("t", 1, "float32", Optimizer("magic", {}))),
        lambda: check_table(Table("t", 1, "float32", init=Initializer("normal", {"std": float("inf")}))),
    ],
)
def test_what_a_table_cannot_be_is_refused_where_it_is_said(make: Callable[[], object]) -> None:
    with pytest.raises(ps.InvalidEvent):
        make()


def test_an_optimizer_travels_by_the_names_of_its_settings() -> None:
    assert optimizer_payload(ps.RowwiseAdagrad(0.5)) == Optimizer(
        "rowwise_adagrad", {"lr": 0.5, "eps": 1e-10, "initial_accumulator_value": 0.0}
    )
