"""Gradients as a stream: a trainer publishes them for the rows of a table, and a subscriber sees each as an event.

Run it by itself: `python examples/publish_gradients.py`.
"""

import numpy as np

import paramstream as ps

DIM = 4


def main() -> None:
    with ps.Broker() as broker, ps.connect(broker.endpoint) as client:
        client.create_topic("ads", partitions=2)
        client.create_table("ads", "users", dim=DIM, optimizer=ps.Adagrad(lr=0.1))
        trainer = client.publisher("ads", producer="trainer-0")
        with client.subscribe("ads", start="head") as events:
            keys = np.array([7, 11, 7])
            grads = np.ones((3, DIM), dtype=np.float32)
            # A key that repeats in one call counts as its sum: 2.0 for user 7, 1.0 for user 11.
            receipt = trainer.publish_gradients("users", keys, grads)
            print("accepted at", receipt.accepted.result())
            seen: list[int] = []
            while len(seen) < len(keys):
                event = events.next(timeout=30)
                assert event.kind == "gradients" and event.keys is not None and event.grads is not None
                seen += event.keys.tolist()
                print(f"{event.table} in partition {event.partition}: keys {event.keys.tolist()}, {event.grads.shape}")
    print("gradients were seen for the keys", sorted(seen))


if __name__ == "__main__":
    main()
