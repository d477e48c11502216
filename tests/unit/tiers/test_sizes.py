"""Sizes as people write them."""

import pytest

from paramstream.tiers.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("100MB", 100_000_000),
        ("1.5 GiB", 3 << 29),
        (" 7 kib ", 7 << 10),
        ("2TB", 2 * 10**12),
        ("12", 12),
        ("12B", 12),
        (12, 12),
        (0, 0),
    ],
)
def test_a_size_is_the_bytes_it_says(text: int | str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "4 G", "4GiBs", "-1", "1e9", "0x10", "1,5GiB", "1.5", "0.3KB B", "１GiB", 1.5, None]
)
def test_what_is_no_size_is_refused_by_name(text: object) -> None:
    with pytest.raises(ValueError) as caught:
        parse_size(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)


def test_a_negative_number_is_no_size() -> None:
    with pytest.raises(ValueError, match="-5"):
        parse_size(-5)


def test_a_size_reads_in_its_largest_unit() -> None:
    assert [size_text(n) for n in (17, 2048, 3 << 29, 5 << 40)] == ["17 bytes", "2 KiB", "1.5 GiB", "5 TiB"]
