"""What a broker counts of a partition for those who watch."""

from paramstream.brokers.load import Load


def test_records_and_bytes_add_up() -> None:
    load = Load()
    load.appended(100)
    load.appended(50)
    assert (load.records, load.nbytes) == (2, 150)


def test_the_oldest_batch_that_is_not_durable_says_how_long_durability_waits() -> None:
    load = Load()
    load.batch_ended(10, now_ns=1_000)
    load.batch_ended(12, now_ns=1_500)
    assert load.undurable_ns(1_700) == 700
    load.durable(11, now_ns=1_800)
    assert (load.durable_after_ns, load.undurable_ns(1_800)) == (800, 300)
    load.durable(12, now_ns=1_900)
    assert (load.durable_after_ns, load.undurable_ns(9_000)) == (400, 0)


def test_a_head_below_every_batch_changes_nothing() -> None:
    load = Load()
    load.batch_ended(10, now_ns=1_000)
    load.durable(9, now_ns=1_200)
    assert (load.durable_after_ns, load.undurable_ns(1_200)) == (0, 200)
