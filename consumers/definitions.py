"""What a replica knows of the definition of a table in one state partition: what it says, and since when."""

from __future__ import annotations

from dataclasses import dataclass

from ..events.kinds import Table
from ..tiers.rows.spec import InitSpec, OptimizerSpec, RowSpec


@dataclass(frozen=True, slots=True)
class Defined:
    """A table as the last event defined it that was applied."""

    definition: Table
    position: int
    """Of that event."""
    kind_position: int
    """Of the event from which on the optimizer is of its kind. The state of all rows is of that kind, begun there or later: two copies
    of a table with the same `kind_position` go together.
    """

    @classmethod
    def after(cls, before: Defined | None, definition: Table, position: int) -> Defined:
        """As an event at `position` defines it; one that is applied again changes nothing."""
        if before is None:
            return cls(definition, position, position)
        if position <= before.position:
            return before
        stays = kind_of(before.definition) == kind_of(definition)
        return cls(definition, position, before.kind_position if stays else position)


def kind_of(definition: Table) -> str:
    """The kind of its optimizer; empty where it has none."""
    return "" if definition.optimizer is None else definition.optimizer.kind


def spec_of(definition: Table) -> RowSpec:
    """The table as tiers know it."""
    optimizer, init = definition.optimizer, definition.init
    return RowSpec(
        definition.dim,
        definition.dtype,
        None if optimizer is None else OptimizerSpec(optimizer.kind, optimizer.settings),
        InitSpec(init.kind, init.settings, init.seed),
    )
