"""What runs beside a world goes on only when the world lets it, and dies where it is."""

from __future__ import annotations

from pathlib import Path

from simulation.aside import Aside, Turns, is_dead, pause
from simulation.snapshot_disk import SnapshotDisk


def test_it_goes_on_from_pause_to_pause() -> None:
    done: list[str] = []

    def run() -> None:
        done.append("begun")
        with Turns():
            done.append("under the lock")
        pause()
        done.append("over")

    aside = Aside("test", run)
    assert done == []
    seen = [(aside.step(), list(done)) for _ in range(3)]
    assert [count for _, count in [(going, len(what)) for going, what in seen]] == [1, 2, 3]
    assert [going for going, _ in seen] == [True, True, False]
    assert not aside.step() and aside.error is None


def test_an_error_is_the_worlds_to_look_at() -> None:
    def run() -> None:
        raise ValueError("wrong")

    aside = Aside("test", run)
    assert not aside.step()
    assert isinstance(aside.error, ValueError)


def test_who_is_killed_cleans_nothing_up_on_the_disk(tmp_path: Path) -> None:
    disk, left = SnapshotDisk(), tmp_path / "left"
    left.write_bytes(b"x")
    cleaned: list[bool] = []

    def run() -> None:
        try:
            pause()
        finally:
            cleaned.append(is_dead())
            disk.unlink(left)

    aside = Aside("test", run)
    aside.step()
    aside.kill()
    assert cleaned == [True] and left.exists()
    assert aside.is_over and aside.error is None


def test_in_the_world_itself_nothing_pauses() -> None:
    with Turns() as turns:
        assert turns
    pause()
