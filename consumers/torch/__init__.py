"""`ps.torch`: torch modules whose rows live in the stream. torch itself is imported when a module of here is first named.

    self.users = ps.torch.EmbeddingBag(rep, pub, "users", mode="mean")      # was: torch.nn.EmbeddingBag(10_000_000, 64, mode="mean")

A publisher is handed in, as to a processor; without one the modules only infer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .modules import Embedding, EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"ps.torch has no {name!r}; it has {', '.join(__all__)}")
    from . import modules

    return getattr(modules, name)
