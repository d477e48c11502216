"""Snapshots: a topic's state in plain safetensors files and a manifest, made while it moves and read back by anybody.

    DIR/model-00000000000004d2/              a topic: its name, percent-encoded, and its id
        latest                               the name of the snapshot to use
        snapshot-00000007/
            manifest.json                    events/manifest.py
            weights-1200.safetensors         one sealed version, under its tensors' own names
            state-0-0000.safetensors         entries of state partition 0
            rows-0-0-0000.safetensors        rows of its first table
        snapshot-00000008/ …

To read one (`reading.py`) and begin a replica with it (`seeding.py`):

    snapshot = open_snapshot(Path(DIR), "model")        # the newest whole one; `.damaged` names those that are not
    snapshot.manifest, snapshot.floor, snapshot.ceiling, snapshot.context
    snapshot.entries(0)                                 # (key, tiers.entries.Entry) of a state partition
    snapshot.rows(0)                                    # (table, tiers.rows.batch.RowBatch) of its tables
    snapshot.sealed(store)                              # the version, in a slot of the store, proved
    seed = Seed.of_snapshot(snapshot, numbers)          # what a replica begins with: `Replica(..., seeds=[seed])`
    seed.starts, seed.targets                           # follow each partition from behind there; read from there on

Nothing of it may be shown before every partition has reached its ceiling.
"""
