"""A trainer goes on from a restored version: a new lineage, which everybody follows, and the old one still readable by position."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import paramstream as ps
from reference.weights import check_weights, digest_of

Tensors = dict[str, npt.NDArray[Any]]
STATE = 2
"""State partitions."""


def weights_of(value: float) -> Tensors:
    return {"w": np.full((40, 50), value, np.float32), "b": np.full(3, value, np.float64)}


@dataclass
class Story:
    """1 … 10 were trained, 6 was restored, 7 and 8 were trained anew from it."""

    log: str
    endpoint: str
    commits: dict[str, ps.Receipt]
    """By name: "1" … "10", "7'", "8'"."""
    before_rewind: datetime
    after_rewind: datetime
    """Behind 7' and before 8'."""
    broker: ps.Broker
    old: ps.Replica
    """Follows from the beginning."""
    pinned: ps.Replica
    """Likewise, and has pinned the old 9."""
    module: torch.nn.Module
    """Bound to `old`."""


def publish(trainer: ps.Publisher, name: str, value: float, *, rewind: bool = False) -> ps.Receipt:
    """Version `name` holds `value`; "step" says its name, as of its commit."""
    trainer.put_many({"step": name.encode(), f"only {name}": b"1"})
    return trainer.publish_weights(weights_of(value), int(name.rstrip("'")), rewind=rewind)


def check(replica: ps.Replica, name: str, value: float) -> None:
    check_weights(replica.weights(), weights_of(value), int(name.rstrip("'")))
    assert replica.get("step") == name.encode()
    assert replica.get(f"only {name}") == b"1"


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    log = f"file:{tmp_path / 'log'}"
    with ExitStack() as stack:
        broker = stack.enter_context(ps.Broker(bind=f"ipc://{tmp_path}/b", log=log))
        followers = stack.enter_context(ps.connect(broker.endpoint))
        followers.create_topic("model", partitions=STATE, retain_versions=20)
        old = followers.replica("model", keep_versions=3, arrays="numpy")
        pinned = followers.replica("model", keep_versions=3, arrays="numpy")
        module = torch.nn.Module()
        module.register_buffer("w", torch.zeros(40, 50))
        module.register_buffer("b", torch.zeros(3, dtype=torch.float64))
        commits: dict[str, ps.Receipt] = {}
        with ps.connect(broker.endpoint) as client:
            trainer = client.publisher("model", producer="trainer")
            for version in range(1, 11):
                commits[str(version)] = publish(trainer, str(version), float(version))
            trainer.flush()
        for replica in (old, pinned):
            replica.wait(commits["10"])
        old.bind(module)
        pinned.rollback(9)
        before = _between()
        with ps.restore(broker.endpoint, "model", at=6, arrays="numpy") as restored:
            check(restored, "6", 6.0)
            start = restored.weights()["w"][0, 0]
        with ps.connect(broker.endpoint) as client:
            trainer = client.publisher("model", producer="trainer")
            commits["7'"] = publish(trainer, "7'", float(start) + 1.5, rewind=True)
            trainer.flush()
            after = _between()
            commits["8'"] = publish(trainer, "8'", float(start) + 2.5)
            trainer.flush()
            with pytest.raises(ps.VersionConflict):
                trainer.publish_weights(weights_of(5.5), 5).accepted.result(10)
        yield Story(log, broker.endpoint, commits, before, after, broker, old, pinned, module)


def _between() -> datetime:
    """A time that no event has: each is stamped in ns, and a datetime has µs."""
    time.sleep(0.002)
    now = datetime.now(UTC)
    time.sleep(0.002)
    return now


def check_restores(source: str, story: Story) -> None:
    for version, name, value in ((6, "6", 6.0), (7, "7'", 7.5), (8, "8'", 8.5), (None, "8'", 8.5)):
        with ps.restore(source, "model", at=version, arrays="numpy") as replica:
            check(replica, name, value)
    for superseded in ("7", "8", "9", "10"):
        with ps.restore(source, "model", at=story.commits[superseded].vector, arrays="numpy") as replica:
            check(replica, superseded, float(superseded))
    for gone in (9, 10):
        with pytest.raises(ps.VersionNotHeld, match="A rewind superseded this one"):
            ps.restore(source, "model", at=gone)
    for moment, name, value in ((story.before_rewind, "10", 10.0), (story.after_rewind, "7'", 7.5)):
        with ps.restore(source, "model", at=moment, arrays="numpy") as replica:
            check(replica, name, value)


def check_followers(client: ps.Client, story: Story) -> None:
    """Of a client whose trainer is gone: late replicas have the new lineage, any version of it, and what it grew from."""
    with client.replica("model", arrays="numpy") as late:
        check(late, "8'", 8.5)
        for version, value in ((7, 7.5), (2, 2.0), (6, 6.0), (8, 8.5)):
            late.rollback(version)
            check_weights(late.weights(), weights_of(value), version)
        for gone in (9, 10):
            with pytest.raises(ps.VersionNotHeld):
                late.rollback(gone)
        late.follow()
        check(late, "8'", 8.5)
    listed = client.versions("model")
    assert [(v.version, v.superseded, v.restorable) for v in listed] == [
        *((version, version > 6, version <= 6) for version in range(1, 11)),
        (7, False, True),
        (8, False, True),
    ]
    assert [v.digest for v in listed[-2:]] == [digest_of(weights_of(7.5)), digest_of(weights_of(8.5))]


def test_everybody_follows_a_trainer_that_goes_on_from_a_restored_version(story: Story) -> None:
    old, pinned = story.old, story.pinned
    old.wait(story.commits["8'"])
    check(old, "8'", 8.5)
    check_weights(old.weights(7), weights_of(7.5), 7)
    assert float(story.module.get_buffer("w").min()) == 8.5
    with pytest.raises(ps.VersionNotHeld):
        old.weights(10)
    with pytest.raises(ps.ParamstreamTimeout):
        old.wait_version(9, timeout=0.05)
    pinned.wait(story.commits["8'"])
    check_weights(pinned.weights(), weights_of(9.0), 9)
    pinned.follow()
    check(pinned, "8'", 8.5)
    with ps.connect(story.endpoint) as client:
        check_followers(client, story)
    check_restores(story.endpoint, story)
    check_restores(story.log, story)


def test_a_restarted_broker_knows_the_new_lineage(story: Story) -> None:
    old = story.old
    old.wait(story.commits["8'"])
    digest = old.digest()
    story.broker.close()
    check_restores(story.log, story)
    with ps.Broker(bind=story.endpoint, log=story.log) as again, ps.connect(again.endpoint) as client:
        check_followers(client, story)
        check_restores(again.endpoint, story)
        trainer = client.publisher("model", producer="trainer")
        trainer.publish_weights(weights_of(9.5), 9).durable.result(10)
        old.wait_version(9, timeout=10)
        check_weights(old.weights(), weights_of(9.5), 9)
        assert float(story.module.get_buffer("w").min()) == 9.5
        with ps.restore(story.log, "model", at=8, arrays="numpy") as replica:
            assert replica.digest() == digest
        story.old.close()
        story.pinned.close()
