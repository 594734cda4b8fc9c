"""``rocket store …``: check, dump, rebuild and stats of a stopped broker's directory; their arguments and printing.

What is asked for goes to stdout: tables for people, or, with ``--json``, one JSON object a line. What is wrong, and how
far it is on a large store, goes to stderr, so that output can be piped; a reader that has had enough (``| head``) ends
the command quietly. The work is done in ``spark_rocket.store``, and only ``rebuild`` writes.

Exit status: 0 fine, 1 problems were found or it could not be done, 2 the command line is wrong.
Corresponds to nothing in RocketMQ: mqadmin asks running brokers.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_rocket.protocol.record import RecordView
    from spark_rocket.store.config import StoreConfig
    from spark_rocket.store.problem import Problem
    from spark_rocket.store.store_stats import Files, QueueStats, StoreStats

_SHOWN_PER_KIND = 10
_LARGE = 64 << 20  # a store from this size on has a progress bar
_PREVIEW = 60
_KINDS = ("files", "lock", "abort", "record", "hidden", "end", "tail", "queue", "offsets", "entry", "filler", "index")


def add_store(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb and its four actions."""
    store = verbs.add_parser(
        "store",
        help="check, dump, rebuild and measure a store directory",
        description="Tools for the directory of a stopped broker, Apache's (4.9, 5.x) or this one's. "
        "Only rebuild writes. DIR is the store itself (storePathRootDir), or the directory that rocket up keeps it in.",
    )
    actions = store.add_subparsers(title="commands", required=True, metavar="COMMAND")

    check = _action(
        actions,
        "check",
        _check,
        "verify every invariant",
        "Verify a store: every record, queue entry, index entry and file against the others. Changes nothing. "
        "Exit status 1 if there is a problem.",
        "rocket store check ~/store -c conf/broker.conf",
    )
    check.add_argument("--json", action="store_true", help="problems as JSON, one a line")
    check.add_argument("--all", action="store_true", help=f"every problem, not only {_SHOWN_PER_KIND} of a kind")

    dump = _action(
        actions,
        "dump",
        _dump,
        "print messages",
        "Print messages in the order of the log, or queue by queue. Damaged stretches of the log are reported on "
        "stderr and left out; what is whole behind them is printed. Exit status 1 if there were any.",
        "rocket store dump rocket-data --topic orders --since 2026-11-21T08:00 --json | head",
    )
    dump.add_argument("-t", "--topic", action="append", help="of this topic (may be given several times)")
    dump.add_argument("-q", "--queue", type=_number, metavar="ID", help="of this queue id")
    dump.add_argument("--from-offset", type=_number, metavar="N", help="from this queue offset on")
    dump.add_argument("--to-offset", type=_number, metavar="N", help="up to this queue offset, and with it")
    dump.add_argument("--since", type=_time, metavar="TIME", help="stored then or later: 2026-11-21T08:00, or ms")
    dump.add_argument("--until", type=_time, metavar="TIME", help="stored then or earlier")
    dump.add_argument("-k", "--key", help="with this key, or unique key")
    dump.add_argument("--at", type=_number, metavar="PHYSICAL", help="only the message at this offset of the log")
    dump.add_argument("--by-queue", action="store_true", help="by topic, queue and offset, as consumers read them")
    dump.add_argument("-n", "--limit", type=_limit, metavar="N", help="at most so many")
    dump.add_argument("--json", action="store_true", help="everything of a message as JSON, one a line")

    rebuild = _action(
        actions,
        "rebuild",
        _rebuild,
        "make consume queues and index anew from the log",
        "Make consume queues and index anew from the commit log, beside the old ones, and exchange them when all "
        "is on disk. The log is not changed. Damage in the log refuses it: nothing is written then.",
        "rocket store rebuild ~/store -c conf/broker.conf --dry-run",
    )
    rebuild.add_argument(
        "--dry-run", action="store_true", help="read the whole log, say what would be done, do nothing"
    )
    rebuild.add_argument(
        "--skip-damage",
        action="store_true",
        help="go on behind damage: messages in it are lost, others keep their offsets",
    )

    stats = _action(
        actions,
        "stats",
        _stats,
        "sizes per topic and queue",
        "Messages, bytes, offsets and times of every queue, and the room that the files take. The figures come from "
        "the consume queues, which know every message's size.",
        "rocket store stats ~/store --topic orders",
    )
    stats.add_argument("-t", "--topic", action="append", help="of this topic (may be given several times)")
    stats.add_argument("--scan", action="store_true", help="read the log instead of the consume queues")
    stats.add_argument(
        "--json", action="store_true", help="queues as JSON, one a line, and a last line with the totals"
    )


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace, Path, StoreConfig | None], int],
    summary: str,
    description: str,
    example: str,
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=summary, description=description, epilog=f"Example: {example}")
    action.add_argument("directory", type=Path, metavar="DIR")
    action.add_argument("-c", "--config", type=Path, metavar="FILE", help="the broker.conf, if it sets file sizes")
    action.set_defaults(run=lambda options: _run(run, options))
    return action


def _run(run: Callable[[argparse.Namespace, Path, StoreConfig | None], int], options: argparse.Namespace) -> int:
    from spark_rocket.cli.main import store_directory

    directory = store_directory(options.directory)
    if not directory.is_dir():
        print(f"rocket: {options.directory} is no store directory: it has no commitlog in it.", file=sys.stderr)
        return 1
    config = None
    if options.config is not None:
        from spark_rocket.broker.config import BrokerConfig

        config = BrokerConfig.from_file(options.config).store_config()
    try:
        status = run(options, directory, config)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has had enough; what is left in the buffer must not be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("rocket: interrupted, and not done.", file=sys.stderr)
        return 1
    return status


# --- check ------------------------------------------------------------------------------------------------------


def _check(options: argparse.Namespace, directory: Path, config: StoreConfig | None) -> int:
    from spark_rocket.store.check import check_store

    notes: list[str] = []
    with _Bar() as bar:
        problems = check_store(directory, config, progress=bar, notes=notes)
    problems.sort(key=_order)
    counts = Counter(problem.kind for problem in problems)
    for problem in problems if options.all or options.json else _first_of_each_kind(problems):
        print(json.dumps(_plain(asdict(problem)), ensure_ascii=False) if options.json else problem)
    if not options.json:
        hidden = sum(max(count - _SHOWN_PER_KIND, 0) for count in counts.values())
        if hidden and not options.all:
            print(f"… and {hidden:,} more; --all shows them")
        for note in notes:
            print(f"note: {note}")
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        print(f"{directory}: {len(problems):,} problem(s): {kinds}" if problems else f"{directory}: in order")
    return 1 if problems else 0


def _order(problem: Problem) -> tuple[int, str, Path, int]:
    known = _KINDS.index(problem.kind) if problem.kind in _KINDS else len(_KINDS)
    return known, problem.kind, problem.path, problem.offset


def _first_of_each_kind(problems: Iterable[Problem]) -> Iterable[Problem]:
    shown: Counter[str] = Counter()
    for problem in problems:
        shown[problem.kind] += 1
        if shown[problem.kind] <= _SHOWN_PER_KIND:
            yield problem


# --- dump -------------------------------------------------------------------------------------------------------


def _dump(options: argparse.Namespace, directory: Path, config: StoreConfig | None) -> int:
    from spark_rocket.store.dump import DumpFilter, dump_log, dump_queues, to_json
    from spark_rocket.store.salvage import Damage
    from spark_rocket.store.store_view import view_store

    wanted = DumpFilter(
        topics=frozenset(options.topic) if options.topic else None,
        queue_id=options.queue,
        min_offset=options.from_offset,
        max_offset=options.to_offset,
        begin_ms=options.since,
        end_ms=options.until,
        key=options.key,
        physical_offset=options.at,
    )
    count, damaged = 0, False
    with view_store(directory, config) as view, _Bar(is_wanted=not sys.stdout.isatty()) as bar:
        if not options.json:
            print(f"{'stored':<23}  {'topic, queue, offset':<32}  {'at':>14}  {'bytes':>9}  {'tags':<10}  body")
        source = dump_queues(view, wanted) if options.by_queue else dump_log(view, wanted, progress=bar)
        for found in source:
            if isinstance(found, Damage):
                damaged = True
                bar.clear()
                print(f"rocket: damaged: {found}", file=sys.stderr)
                continue
            print(json.dumps(to_json(found), ensure_ascii=False) if options.json else _line(found))
            count += 1
            if count == options.limit:
                break
        bar.clear()
        for problem in view.problems:  # of a queue they are known when it is its turn
            print(f"rocket: {problem}", file=sys.stderr)
        return 1 if damaged or view.problems else 0


def _line(record: RecordView) -> str:
    from spark_rocket.protocol.properties import find_property

    tags = str(find_property(bytes(record.properties), b"TAGS") or b"", "utf-8", "replace")
    place = f"{str(record.topic, 'utf-8', 'replace')}, {record.queue_id}, {record.queue_offset}"
    return (
        f"{_moment(record.store_timestamp):<23}  {place:<32}  {record.physical_offset:>14}  {record.size:>9,}  "
        f"{tags:<10}  {_preview(bytes(record.body[: 4 * _PREVIEW]))}"
    )


def _preview(body: bytes) -> str:
    """The beginning of a body: text, or hex where it is none."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body)  # a letter cut in two at the end is left out
    except UnicodeDecodeError:
        text = "\0"
    letters = text[:_PREVIEW]
    if letters.count("\0"):
        return f"0x{body[: _PREVIEW // 2].hex()}{'…' if len(body) > _PREVIEW // 2 else ''}"
    return "".join(letter if letter.isprintable() else "·" for letter in letters) + (
        "…" if len(text) > _PREVIEW else ""
    )


# --- rebuild ----------------------------------------------------------------------------------------------------


def _rebuild(options: argparse.Namespace, directory: Path, config: StoreConfig | None) -> int:
    from spark_rocket.store.rebuild import rebuild_store

    with _Bar() as bar:
        report = rebuild_store(
            directory, config, skip_damage=options.skip_damage, dry_run=options.dry_run, progress=bar
        )
    for damage in report.damage:
        print(f"rocket: damaged: {damage}", file=sys.stderr)
    for hole in report.holes:
        print(f"rocket: {hole}", file=sys.stderr)
    made = "would be made" if options.dry_run else "made"
    sizes = report.config
    print(f"{directory}: {report.records:,} messages in the log")
    print(
        f"consume queues {made}: {report.queues:,} with {report.entries:,} entries, "
        f"files of {sizes.mapped_file_size_consume_queue:,} bytes"
    )
    if report.kept:
        print(f"consume queues kept, since the log has no message of them: {report.kept:,}")
    if sizes.message_index_enable:
        print(
            f"index {made}: {report.keys:,} keys, {sizes.max_hash_slot_num:,} slots and {sizes.max_index_num:,} a file"
        )
    if report.lower_checkpoint_to >= 0:
        print(f"checkpoint {'would be ' if options.dry_run else ''}set back to {_moment(report.lower_checkpoint_to)}")
    if options.dry_run:
        print("Nothing was changed (--dry-run).")
    return 1 if report.damage or report.holes else 0


# --- stats ------------------------------------------------------------------------------------------------------


def _stats(options: argparse.Namespace, directory: Path, config: StoreConfig | None) -> int:
    from spark_rocket.store.store_stats import store_stats
    from spark_rocket.store.store_view import view_store

    topics = frozenset(options.topic) if options.topic else None
    with view_store(directory, config) as view, _Bar(is_bytes=options.scan) as bar:
        stats = store_stats(view, topics, scan=options.scan, progress=bar)
        problems = list(view.problems)
    for problem in (*problems, *stats.damage):
        print(f"rocket: {problem}", file=sys.stderr)
    stats.queues.sort(key=lambda queue: (-queue.bytes, queue.topic, queue.queue_id))
    if options.json:
        _print_json_stats(stats)
    else:
        _print_stats(directory, stats, options.scan)
    if topics and not stats.queues:
        print(f"rocket: {directory} has no queue of {', '.join(sorted(topics))}.", file=sys.stderr)
        return 1
    return 1 if problems or stats.damage else 0


def _print_json_stats(stats: StoreStats) -> None:
    for queue in stats.queues:
        print(json.dumps(_camel(asdict(queue)), ensure_ascii=False))
    totals = {name: value for name, value in asdict(stats).items() if name not in ("queues", "damage")}
    print(json.dumps(_camel(totals), ensure_ascii=False))


def _print_stats(directory: Path, stats: StoreStats, is_scan: bool) -> None:
    by_topic: dict[str, list[QueueStats]] = {}
    for queue in stats.queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    rows = [("topic", "queue", "messages", "bytes", "offsets", "first stored", "last stored")]
    for topic, queues in sorted(by_topic.items(), key=lambda pair: (-sum(queue.bytes for queue in pair[1]), pair[0])):
        messages, size = sum(queue.messages for queue in queues), sum(queue.bytes for queue in queues)
        first = min((queue.first_store_time for queue in queues if queue.first_store_time >= 0), default=-1)
        last = max(queue.last_store_time for queue in queues)
        rows.append((topic, f"all {len(queues)}", f"{messages:,}", _size(size), "", _moment(first), _moment(last)))
        rows += [
            (
                "",
                str(queue.queue_id),
                f"{queue.messages:,}",
                _size(queue.bytes),
                f"{queue.min_offset:,} to {queue.max_offset:,}",
                _moment(queue.first_store_time),
                _moment(queue.last_store_time),
            )
            for queue in queues
        ]
    if stats.queues:
        _print_table(rows, right={1, 2, 3})
        print()
    span = stats.log_max_offset - stats.log_min_offset
    print(f"{directory}")
    print(f"  log offsets     {stats.log_min_offset:,} to {stats.log_max_offset:,}: {_size(span)}")
    print(f"  stored          {_moment(stats.first_store_time)} to {_moment(stats.last_store_time)}")
    entries = f", {stats.index_entries:,} entries" if stats.index_entries >= 0 else " (entries: give -c broker.conf)"
    for name, files, more in (
        ("commitlog", stats.log, ""),
        ("consumequeue", stats.consume_queues, f", {len(stats.queues):,} queues"),
        ("index", stats.index, entries if stats.index.count else ""),
        ("all files", stats.everything, ""),
    ):
        print(f"  {name:<14}  {_files(files)}{more}")
    source = "the log, all of it read" if is_scan else "the consume queues; --scan reads the log instead"
    print(f"  messages and bytes are from {source}")


def _files(files: Files) -> str:
    word = "file" if files.count == 1 else "files"
    return f"{files.count:,} {word} of {_size(files.size)}, {_size(files.on_disk)} on disk"


def _print_table(rows: Sequence[Sequence[str]], right: set[int]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [text.rjust(widths[i]) if i in right else text.ljust(widths[i]) for i, text in enumerate(row)]
        print("  ".join(cells).rstrip())


# --- values as people read them ---------------------------------------------------------------------------------


def _size(count: int) -> str:
    if count < 1024:
        return f"{count:,} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / (1 << 10 * power):,.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def _moment(milliseconds: int) -> str:
    """Local time to the millisecond; what no calendar has, as a number."""
    if milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def _number(text: str) -> int:
    if not text.isdecimal() or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return int(text)


def _limit(text: str) -> int:
    if not _number(text):
        raise argparse.ArgumentTypeError("give at least 1")
    return int(text)


def _time(text: str) -> int:
    if text.isdecimal() and text.isascii() and len(text) > 8:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text} is not a time; write 2026-11-21, 2026-11-21T08:00:30 (local, or with +00:00), or milliseconds"
        ) from None


def _camel(values: dict[str, Any]) -> dict[str, Any]:
    return {
        head + "".join(part.capitalize() for part in rest): _camel(value) if isinstance(value, dict) else value
        for name, value in values.items()
        for head, *rest in [name.split("_")]
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


class _Bar:
    """How far it is, on stderr: only where a person looks at it, and only for what takes long."""

    def __init__(self, *, is_bytes: bool = True, is_wanted: bool = True) -> None:
        self._is_bytes = is_bytes
        self._is_shown = is_wanted and sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._has_line = False

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._last < 0.2 or (self._is_bytes and total < _LARGE) or not total:
            return
        self._last = now
        rate = done / (now - self._begin)
        left = f", {(total - done) / rate:,.0f} s left" if rate else ""
        if self._is_bytes:
            text = f"{_size(done)} of {_size(total)}, {_size(int(rate))}/s{left}"
        else:
            text = f"{done:,} of {total:,} queues{left}"
        filled = 30 * done // total
        print(f"\r\033[K[{'#' * filled}{' ' * (30 - filled)}] {100 * done // total} %  {text}", end="", file=sys.stderr)
        sys.stderr.flush()
        self._has_line = True

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._has_line:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._has_line = False
