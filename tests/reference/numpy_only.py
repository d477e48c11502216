"""A replica process that has no torch: `python -S -m reference.numpy_only ENDPOINT TOPIC VERSION` prints what it holds.

One JSON object: for each tensor its dtype, shape and bytes in hexadecimal, the digest, and whether torch could be found.
"""

from __future__ import annotations

import importlib.util
import json
import sys

import paramstream as ps


def main() -> None:
    endpoint, topic, version = sys.argv[1:]
    with ps.connect(endpoint) as client, client.replica(topic) as replica:
        replica.wait_version(int(version), timeout=20.0)
        held = replica.weights()
        tensors = {name: (str(a.dtype), list(a.shape), a.tobytes().hex(), type(a).__name__) for name, a in held.items()}
    found = importlib.util.find_spec("torch") is not None
    print(json.dumps({"torch": found, "digest": held.digest, "tensors": tensors}))


if __name__ == "__main__":
    main()
