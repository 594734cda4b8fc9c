"""What a Python worker of Spark's is told before its first task of ours.

Spark's workers collect garbage after every task. That looks at each object of every module that is loaded, 57,000 of
them and more: some 20 ms of a core, a task that reads little takes 5. What is there by then stays as long as the
process, so the collector is told to leave it alone. Freed memory is kept for the next large answer.

Once per process. Corresponds to nothing in RocketMQ.
"""

from __future__ import annotations

import gc
from functools import cache

from spark_rocket.system import keep_freed_memory


@cache
def settle_worker() -> None:
    """Called by each task that reads or writes, before it does."""
    keep_freed_memory()
    gc.freeze()
