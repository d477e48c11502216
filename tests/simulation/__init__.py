"""Hostile worlds: the real cores on a virtual clock, with everything between them simulated. `make sim SEEDS=1:2000`, or from the root

    cd tests && python -m simulation --seeds 17           one world, told in short if it fails; --help says what else there is

A *scenario* is a seed and a list of *acts*. The seed makes a *world*; each act does one thing to it, and everything under way moves on a
little. Then all heals, and must settle. What must hold is held against the log alone. The same scenario gives the same trace, because
all chance comes from streams that the seed names (`World.stream`), and all time from `clock.py`.

| to find | look into |
| --- | --- |
| how a seed becomes a scenario, is played, shrunk and told | `kinds.py`, `scenario.py`, `play.py`, `trace.py`, `shrink.py`, `runner.py` |
| what can be done to a world | `act.py`, `acts.py` (all of them), `acts_*.py` |
| a world with one broker over a local log, on a disk that forgets | `world.py`, `broker.py`, `disk.py`, `files.py`, `memory.py` |
| a world with several brokers over one log, one seed in four | `shared_world.py`, `process.py`, `shared_log.py`, `group.py`, `fleet.py` |
| clients | `producer.py`; `consumer.py` (a replica's name), `life.py` (one life of it), `changelogs.py`, `snapshot_disk.py`, `aside.py` |
| what they write and see, by names that tell who wrote it | `topics.py`, `writes.py`, `versions.py`, `seen.py` |
| what is between clients and brokers | `network.py`, `consumer_link.py` |
| what must hold | `judge.py`, `life.py` (step by step), `standing.py` and `states.py` (what is true), `recorded.py` (the public checkers) |
| what is switched off to see that it is missed | `mutation.py`, `mutations.py` (all of them), `mutations_*.py` |
| what was broken once | `regressions.py` |

To add
- *an act*: a function of the world and its chance, in the file `acts_*.py` of its idea, with a row in its `ACTS`. All chance comes from the stream
  that it is given; where there is nothing to do it to, it does nothing; what it leaves, `World.heal` mends.
- *a check*: a generator of sentences in `judge.py`, called in `safety_problems` if it holds at any moment, in `problems` if it holds once all has
  settled. It looks at the log, never at what a core believes.
- *a mutation*: a row in a file `mutations_*.py`, with what stands there instead of the rule. Every check is worth what it catches: see it caught.
- *a regression*: the line that a failing seed prints, with what was broken, in `regressions.py`; and a small test beside what was mended, since
  a later change of the simulation makes another story of the seed.
"""
