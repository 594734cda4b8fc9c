"""Columns of one text, or of some, again and again: most batches of a run are equally long, and have the last one's.

Thread-safety: arrays do not change; the caches are the interpreter's. No RocketMQ class corresponds to it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa


@lru_cache(8)
def repeated_text(text: str, count: int) -> pa.Array:
    """A column of one text."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


@lru_cache(8)
def even_edges(lengths: tuple[int, ...], count: int) -> pa.Buffer:
    """Offsets of ``count`` times as many texts as there are lengths, one behind the other."""
    edges = np.zeros(count * len(lengths) + 1, np.int32)
    if lengths:
        ends = np.cumsum(lengths, dtype=np.int32)
        edges[1:] = np.add.outer(np.arange(count, dtype=np.int32) * ends[-1], ends).ravel()
    return pa.py_buffer(edges)


@lru_cache(2)
def repeated_texts(texts: tuple[bytes, ...], count: int) -> pa.Array:
    """A column of some texts, so many times one after the other."""
    edges = even_edges(tuple(map(len, texts)), count)
    return pa.Array.from_buffers(pa.string(), count * len(texts), [None, edges, pa.py_buffer(b"".join(texts) * count)])
