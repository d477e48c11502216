"""Scenarios that once failed, made short: each is played in every run of the tests.

A later change of the simulation may make another story of one. So what it showed has a test of its own beside what was mended.
"""

from __future__ import annotations

from dataclasses import dataclass

from .scenario import Scenario


@dataclass(frozen=True)
class Regression:
    about: str
    """What was broken."""
    scenario: Scenario


REGRESSIONS = [
    Regression(
        "a call of a fenced session whose parts had gone in part never ended",
        Scenario.of(
            3010,
            "4 rest, 6 rest, 7 rest, 12 put, 14 rest, 15 rest, 32 kill amidst, 33 open name again, 39 rest, 41 rest, 70 end broker",
        ),
    ),
    Regression(
        "a replica that began with a snapshot was recorded as if it had jumped backwards",
        Scenario.of(
            209, "4 rest, 15 rest, 37 open name again, 57 rest, 58 rest, 63 rest, 64 publish, 69 rest, 70 take snapshot"
        ),
    ),
    Regression(
        "what a failed sync had not stored was believed, because its process was killed before it could say so",
        Scenario.of(
            250,
            "0 rest, 4 rest, 6 rest, 14 publish, 15 put, 33 crash replica, 34 crash replica, 74 crash replica, 75 kill amidst, "
            "103 publish, 104 rest, 105 rest, 107 rest, 108 rest, 109 kill amidst, 110 fail disk, 137 sync",
        ),
    ),
    Regression(
        "a write was recorded twice, because a partition that had nothing was taken to have it durable",
        Scenario.of(
            363,
            "7 rest, 9 rest, 10 rest, 14 rest, 27 rest, 28 put, 31 publish, 33 fail disk, 35 reset, 36 kill amidst, 38 sync, "
            "40 rest, 41 rest, 42 rest, 43 put, 47 beat",
        ),
    ),
    Regression(
        "what the log had refused stood after a power failure",
        Scenario.of(1797, "1 rest, 4 fail disk, 6 put, 7 fail disk, 16 put, 24 end broker"),
    ),
    Regression(
        "a fetch amidst a reread of a log in Kafka was answered with a gap",
        Scenario.of(
            76,
            "0 rest, 2 rest, 3 rest, 7 rest, 35 rest, 36 rest, 37 rest, 38 rest, 39 rest, 40 rest, 41 rest, 42 rest, 44 rest, 46 rest",
        ),
    ),
    Regression(
        "a replica was told by a broker that was taken over that the log is older than what it had",
        Scenario.of(
            12,
            "0 rest, 9 pause broker, 10 rest, 11 rest, 29 rest, 30 rest, 32 rest, 33 rest, 42 rest, 43 rest, 44 rest, 48 rest",
        ),
    ),
    Regression(
        "a replica that began with a snapshot was told by a broker that was taken over that the log ends before it",
        Scenario.of(
            1240,
            "0 rest, 1 rest, 2 rest, 12 cut one way, 14 rest, 16 rest, 17 rest, 19 rest, 22 lose the group, 36 rest, 38 rest, 39 rest, "
            "64 rest, 66 rest, 85 rest, 86 rest, 87 rest, 93 rest, 96 rest, 97 rest, 99 crash replica, 100 rest, 101 rest, 102 rest, "
            "105 rest, 107 rest, 108 rest, 113 start replica, 115 rest, 122 rest, 124 crash replica, 126 rest, 129 rest, "
            "130 take snapshot, 131 rest, 135 rest",
        ),
    ),
    Regression(
        "nobody said that something is lost of a topic kept nowhere, because the log did not have its epoch yet",
        Scenario.of(
            2270,
            "17 rest, 20 rest, 61 publish, 78 rest, 79 rest, 80 rest, 82 crash producer, 83 publish, 84 rest, 85 publish, 86 publish, "
            "87 rest, 88 rest, 107 rest, 109 publish, 110 publish, 111 rest, 112 rest, 113 rest, 122 put, 123 rest, 125 rest, "
            "126 end broker",
        ),
    ),
    Regression(
        "a version that waited for its chunks and was lost was passed over, and the one before it served instead",
        Scenario.of(
            1431,
            "1 rest, 2 put, 14 rest, 17 put, 19 publish, 21 rest, 22 publish, 23 rest, 25 sync, 26 publish, 56 rest, 57 publish, "
            "60 cut one way, 61 kill amidst, 62 put, 66 fill store, 72 kill amidst, 75 publish, 78 put, 82 publish, 86 kill amidst, "
            "95 rest, 96 rest, 97 rest, 98 rest, 102 rest, 103 rest, 104 rest, 110 end broker",
        ),
    ),
    Regression(
        "a replica had been shown the record of a new epoch which a power failure took back, and the clock was behind",
        Scenario.of(
            1269,
            "0 rest, 1 rest, 4 publish, 6 publish, 7 rest, 10 rest, 11 publish, 14 publish, 16 rest, 17 rest, 31 rest, "
            "34 cut one way, 35 rest, 36 publish, 37 rest, 38 rest, 39 set the clock, 50 put, 52 put, 53 kill amidst, 54 rest, "
            "56 rest, 57 publish, 66 rest, 67 publish, 76 rest, 78 sync",
        ),
    ),
    Regression(
        "a replica that began was to reach a position of an epoch which a power failure took back, and never could",
        Scenario.of(
            1175,
            "2 rest, 3 end broker, 6 publish, 19 rest, 32 publish, 41 publish, 42 publish, 66 crash replica, 67 rest, "
            "68 crash replica, 73 publish, 76 set the clock, 77 kill amidst, 78 start replica, 79 rest, 81 rest, 82 publish, "
            "83 rest, 84 put, 86 rest",
        ),
    ),
    Regression(
        "an event was refused for a past that another broker had given: the look at the log that said otherwise was older than the event",
        Scenario.of(
            1116,
            "6 rest, 7 rest, 8 lose the group, 10 rest, 11 rest, 12 rest, 13 rest, 14 rest, 34 lose the group, 35 cut one way, "
            "36 rest, 37 rest, 38 rest, 39 rest, 40 rest, 41 rest, 42 rest, 44 rest, 45 rest, 46 stop, 48 rest, 51 rest, 52 rest, "
            "53 rest, 61 rest, 62 rest, 63 rest, 64 rest, 65 rest, 75 rest, 78 rest, 79 cut from the log, 101 rest, 103 rest, "
            "104 rest, 105 rest, 107 rest, 108 put",
        ),
    ),
]
