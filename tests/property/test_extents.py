"""Pieces of a file against a model that is a list of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from paramstream.tiers.extents import UNIT_BYTES, Extents, rounded

CAPACITY = 40 * UNIT_BYTES


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * UNIT_BYTES), st.integers(0, 30)), max_size=60))
def test_no_byte_is_in_two_pieces_and_freed_bytes_are_used_again(steps: list[tuple[bool, int, int]]) -> None:
    extents, pieces = Extents(CAPACITY), list[tuple[int, int]]()
    for is_taken, nbytes, which in steps:
        used = sorted((offset, rounded(size)) for offset, size in pieces)
        if is_taken:
            edges = [0, *(offset + size for offset, size in used)]
            gaps = [after - before for before, after in zip(edges, [o for o, _ in used] + [CAPACITY], strict=True)]
            offset = extents.find(nbytes)
            assert (offset is None) == (max(gaps) < rounded(nbytes))
            if offset is not None:
                assert all(offset + rounded(nbytes) <= start or start + size <= offset for start, size in used)
                # The smallest hole that fits, and the end only where none does.
                gap = gaps[edges.index(offset)]
                inner = [each for each in gaps[:-1] if each >= rounded(nbytes)]
                assert (gap == min(inner)) if inner else offset == edges[-1]
                extents.take(offset, nbytes)
                pieces.append((offset, nbytes))
        elif pieces:
            extents.give(*pieces.pop(which % len(pieces)))
        assert extents.used == sum(rounded(size) for _, size in pieces)
        assert extents.end == max((offset + rounded(size) for offset, size in pieces), default=0)
