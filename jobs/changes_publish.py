"""Publish the changes of an invented table of orders as Canal or Debezium would: inserts, updates and deletes.

Each message is one change, or for Canal one statement with several rows. The sharding key is the primary key, or the
table for statements, so that the changes of a row are in one queue in their order. A run with the same seed publishes
the same changes; ``Orders.rows`` is the table after them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.session import ensure_topic, job_parser
from spark_rocket.client import Producer
from spark_rocket.model import Message

FORMATS = ("canal", "debezium", "debezium-schema")
CHANGES_TOPIC = "order-changes"
Row = dict[str, Any]
_START = datetime(2026, 1, 31, 12)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Change:
    """A change of one row. ``before`` is None for an insert, ``after`` for a delete."""

    before: Row | None
    after: Row | None
    at: datetime


class Orders:
    """A table whose rows change at random."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._next = 1
        self.rows: dict[int, Row] = {}

    def changes(self, count: int) -> Iterator[Change]:
        for number in range(count):
            at = _START + timedelta(seconds=number)
            kind = self._random.random()
            if kind < 0.5 or not self.rows:
                after = self._row(self._next, at)
                self._next += 1
                self.rows[after["id"]] = after
                yield Change(None, after, at)
                continue
            before = self._random.choice(list(self.rows.values()))
            if kind < 0.8:
                after = self._row(before["id"], before["ordered_at"])
                self.rows[before["id"]] = after
                yield Change(before, after, at)
            else:
                del self.rows[before["id"]]
                yield Change(before, None, at)

    def _row(self, key: int, at: datetime) -> Row:
        return {
            "id": key,
            "item": self._random.choice(["tea", "coffee", "中文", None]),
            "price": self._random.randrange(10_000) / 100,
            "paid": self._random.random() < 0.5,
            "ordered_at": at,
            "due": at.date() + timedelta(days=self._random.randrange(30)),
        }


def canal(change: Change) -> Row:
    """Canal's flat message: values are text, a boolean is a number, and ``old`` has the former values only."""
    rows = [_texts(row) for row in (change.before, change.after) if row is not None]
    kind = "INSERT" if change.before is None else "DELETE" if change.after is None else "UPDATE"
    old = {name: value for name, value in rows[0].items() if value != rows[-1][name]} if kind == "UPDATE" else None
    at = _millis(change.at)
    return {
        "data": [rows[-1]], "database": "shop", "es": at, "id": at // 1000, "isDdl": False,
        "mysqlType": {"id": "bigint", "ordered_at": "datetime", "due": "date"}, "old": None if old is None else [old],
        "pkNames": ["id"], "sql": "", "sqlType": {"id": -5}, "table": "orders", "ts": at + 5, "type": kind,
    }  # fmt: skip


def canal_ddl() -> Row:
    """A change of the table's definition, which has no rows."""
    sql = "ALTER TABLE orders ADD COLUMN note text"
    return {
        "data": None, "database": "shop", "es": 0, "id": 0, "isDdl": True, "mysqlType": None, "old": None,
        "pkNames": None, "sql": sql, "sqlType": None, "table": "orders", "ts": 0, "type": "ALTER",
    }  # fmt: skip


def debezium(change: Change, *, with_schema: bool) -> Row:
    """Debezium's envelope: times are microseconds, dates are days, decimals are text (``decimal.handling.mode``)."""
    kind = "c" if change.before is None else "d" if change.after is None else "u"
    payload = {
        "before": _numbers(change.before), "after": _numbers(change.after), "op": kind,
        "source": {"connector": "mysql", "db": "shop", "table": "orders"}, "ts_ms": _millis(change.at),
    }  # fmt: skip
    return (
        {"schema": {"type": "struct", "name": "shop.orders.Envelope"}, "payload": payload} if with_schema else payload
    )


def _texts(row: Row) -> Row:
    texts = {
        "id": str(row["id"]), "price": f"{row['price']:.2f}", "paid": str(int(row["paid"])),
        "ordered_at": f"{row['ordered_at']:%Y-%m-%d %H:%M:%S}", "due": row["due"].isoformat(),
    }  # fmt: skip
    return row | texts


def _numbers(row: Row | None) -> Row | None:
    if row is None:
        return None
    days = (row["due"] - _EPOCH.date()).days
    micros = (row["ordered_at"] - _EPOCH) // timedelta(microseconds=1)
    return row | {"price": f"{row['price']:.2f}", "ordered_at": micros, "due": days}


def _millis(at: datetime) -> int:
    return int(at.replace(tzinfo=UTC).timestamp() * 1000)


def messages(changes: Iterator[Change], form: str, topic: str) -> Iterator[Message]:
    """Return a message for each change. Canal's stream begins with a change of the table's definition."""
    if form == "canal":
        yield Message.of(topic, json.dumps(canal_ddl()), sharding_key="orders")
    for change in changes:
        row = change.after or change.before or {}
        body = canal(change) if form == "canal" else debezium(change, with_schema=form == "debezium-schema")
        yield Message.of(topic, json.dumps(body, ensure_ascii=False), keys=str(row["id"]), sharding_key=str(row["id"]))


def publish(name_server: str, form: str, *, topic: str = CHANGES_TOPIC, count: int = 1_000, seed: int = 1) -> Orders:
    """Publish changes, and return the table after them."""
    ensure_topic(name_server, topic, 4)
    orders = Orders(seed)
    with Producer("changes", name_server=name_server) as producer:
        for message in messages(orders.changes(count), form, topic):
            producer.send(message)
    return orders


def main(arguments: list[str] | None = None) -> int:
    parser = job_parser("Publish changes of a table of orders as Canal or Debezium would.")
    parser.add_argument("--topic", default=CHANGES_TOPIC, help="topic to publish to")
    parser.add_argument("--format", choices=FORMATS, default="canal", help="format of the messages")
    parser.add_argument("--count", type=int, default=1_000, metavar="N", help="number of changes")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random changes")
    given = parser.parse_args(arguments)
    orders = publish(given.nameserver, given.format, topic=given.topic, count=given.count, seed=given.seed)
    print(f"Published {given.count:,} changes to {given.topic}: the table has {len(orders.rows):,} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
