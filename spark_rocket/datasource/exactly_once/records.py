"""The format of the ledger's records.

One queue is a total order, so the first PREPARED of an epoch is its decision, and everybody reads the same one: a
compare-and-set on an unmodified broker. A record is one message. Its body is JSON (below), its tag is ``tag_of`` its
query, its key is the query.

==============  ========================================================================================================
member          what
==============  ========================================================================================================
``rocketSink``  1, the version
``kind``        ``PREPARED``: the epoch is decided. ``RESUMED``: another publisher continues it. ``DONE``: published.
                ``LEDGER``: of no query; its only content is the ledger's id
``ledger``      the id of the ledger (``entry.py``); records of older versions do not have it
``query``       Spark's query id, or the ``writeId`` of a batch write
``batch``       the micro-batch's number; 0 for a batch write
``run``         Spark's id of the query's run
``publisher``   an id of the call of ``commit`` that wrote the record
``time``        ms since 1970, by the publisher's clock
``name``        of PREPARED and DONE: the query's name, if it has one
``topics``      of PREPARED and DONE: the rows of each target topic. ``digest``: of what was staged (``commit.py``)
``manifest``    of PREPARED: the manifest (``manifest.py``) in base64, if it has at most 512 KiB
``parts``       of PREPARED, instead: ``[topic, broker, queue id, offset]`` of each message that has a part of it
other           of DONE: figures for people: ``blocks``, ``rows``, ``bytes``, ``published``, ``duplicates``, ``ms``
==============  ========================================================================================================

Pure; without the parts of the sink that need PySpark.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from spark_rocket.datasource.conditions import error as condition
from spark_rocket.model import MessageExt, MessageQueue
from spark_rocket.protocol.wire.json import dumps, loads

VERSION = 1
LEDGER, PREPARED, RESUMED, DONE = "LEDGER", "PREPARED", "RESUMED", "DONE"


def tag_of(query: str) -> str:
    return hashlib.blake2b(query.encode(), digest_size=10).hexdigest()


def id_record(ledger: str = "") -> tuple[bytes, str]:
    """Body and tag of a record with the id of a ledger, or a new one. The first one of a queue counts."""
    body = {
        "rocketSink": VERSION, "kind": LEDGER, "query": "", "batch": -1, "run": "", "publisher": "",
        "time": time.time_ns() // 1_000_000, "ledger": ledger or uuid.uuid4().hex,
    }  # fmt: skip
    return dumps(body), tag_of("")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the ledger."""

    query: str
    offset: int
    kind: str = ""
    batch: int = -1
    run: str = ""
    publisher: str = ""
    version: object = VERSION
    more: dict[str, Any] = field(default_factory=dict)


def parse_record(message: MessageExt, queue: MessageQueue) -> Record:
    """Parse a message of the ledger. Raises EXACTLY_ONCE.FOREIGN_MESSAGE. The caller checks the version."""
    try:
        body = loads(message.body)
        version, query = body.pop("rocketSink"), body.pop("query")
        keys = ("kind", "batch", "run", "publisher")
        own = {key: body.pop(key) for key in keys} if version == VERSION else {}
        return Record(query=query, version=version, offset=message.queue_offset, more=body, **own)
    except (ValueError, KeyError, TypeError, AttributeError):
        where, offset, msg_id = queue.name, message.queue_offset, message.msg_id
        raise condition("EXACTLY_ONCE.FOREIGN_MESSAGE", queue=where, offset=offset, msg_id=msg_id) from None
