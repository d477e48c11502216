"""Back in time: versions go into a log on disk, the broker is gone, and an older one is restored from the log.

Run it by itself: `python examples/replay_checkpoint.py`.
"""

import tempfile

import numpy as np

import paramstream as ps


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = f"file:{folder}/log"
        with ps.Broker(log=log) as broker, ps.connect(broker.endpoint) as client:
            client.create_topic("model", retain_versions=8)
            trainer = client.publisher("model", producer="trainer-0")
            for step in range(1, 6):
                trainer.put("learning-rate", str(0.1 / step).encode())
                trainer.publish_weights({"layer.weight": np.full((2, 2), float(step))}, version=step)
            trainer.flush()
        # No broker runs any more. Rows and entries come back as they were when version 3 was sealed.
        with ps.restore(log, "model", at=3, arrays="numpy") as replica:
            weights = replica.weights()
            print("version", weights.version, "digest", weights.digest)
            print(weights["layer.weight"], replica.get("learning-rate"))
            assert weights["layer.weight"][0, 0] == 3.0
    print("version 3 is back")


if __name__ == "__main__":
    main()
