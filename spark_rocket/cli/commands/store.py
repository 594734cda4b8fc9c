"""``rocket store …``: check, dump, rebuild and stats of a stopped broker's directory; options and output.

Results go to stdout: tables, or with ``--json`` one JSON object per line. Problems and progress go to stderr, so that
the output can be piped. A closed pipe (``| head``) ends the command silently. ``spark_rocket.store`` does the work.
Only ``rebuild`` writes.

Exit status: 0 success, 1 problems found or failure, 2 invalid command line.
RocketMQ has no counterpart: mqadmin works with running brokers.
"""

from __future__ import annotations

import codecs
import errno
import functools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_rocket.cli.arguments import PATH, limit, moment, number, past, store_directory
from spark_rocket.cli.text import Bar, camel, escape_controls, print_problem, print_table
from spark_rocket.cli.verbs import VerbGroup
from spark_rocket.common.units import moment_text, size_text
from spark_rocket.errors import ConfigError, StateError

if TYPE_CHECKING:
    from spark_rocket.protocol.record.record import RecordView
    from spark_rocket.store.config import StoreConfig
    from spark_rocket.store.problems import StoreProblem
    from spark_rocket.store.tools.store_stats import FileUsage, QueueStats, StoreStats

_SHOWN_PER_KIND = 10
_REMEDIES = {
    errno.EACCES: "Run this as the owner of the store.",
    errno.EPERM: "Run this as the owner of the store.",
    errno.EROFS: "Only rebuild writes: run it on a copy of the directory. The other verbs work on this one.",
    errno.EIO: "The disk has a read error: copy the readable files to another disk, and use the copy.",
}
_PREVIEW = 60


@click.group(cls=VerbGroup)
def store() -> None:
    """Tools for the store of a stopped broker, Apache's (4.9, 5.x) or this package's.

    Only rebuild writes. DIR is the store itself (storePathRootDir), or the data directory of rocket up. If commit log,
    consume queues or index are in other directories, a store of this package records that; for Apache's give -c.
    """


_topics_option = click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="only this topic; repeatable"
)


def _directory(verb: Callable[..., int]) -> Callable[..., int]:
    """Add the common arguments: the store's directory, checked, and the configuration, parsed."""

    @click.argument("directory", type=PATH, metavar="DIR")
    @click.option(
        "-c", "--config", type=PATH, metavar="FILE", help="the broker.conf, if it sets file sizes or directories"
    )
    @functools.wraps(verb)
    def guarded(directory: Path, config: Path | None, **values: Any) -> int:
        return _run(verb, directory, config, values)

    return guarded


def _run(verb: Callable[..., int], given: Path, conf: Path | None, values: dict[str, Any]) -> int:
    directory = store_directory(given)
    if not directory.is_dir():
        why = "no commitlog in it" if given.is_dir() else "it is a file" if given.exists() else "it does not exist"
        raise ConfigError(f"invalid store directory {given}: {why}.")
    config = None
    if conf is not None:
        if not conf.exists():
            remedy = "Give the file that the broker is started with, or an empty file if there is none."
            raise ConfigError(f"-c {conf}: file not found.", remedy=remedy)
        from spark_rocket.broker.state.broker_config import BrokerConfig

        config = BrokerConfig.from_file(conf).store_config()
    try:
        status = verb(directory, config, **values)
        sys.stdout.flush()
    except BrokenPipeError:  # main ends silently
        raise
    except OSError as error:
        if error.filename is None and error.errno == errno.ENOSPC:  # only the output has no file name
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise StateError("cannot write the output: no space left on its disk.") from None
        text = f"{error.filename or directory}: {error.strerror or error}."
        raise StateError(text, remedy=_REMEDIES.get(error.errno or 0, "")) from None
    except KeyboardInterrupt:
        raise StateError("interrupted before the end.") from None
    return status


# --- check -----------------------------------------------------------------------------------------------------------


@store.command(short_help="verify every invariant", epilog="Example: rocket store check ~/store -c conf/broker.conf")
@_directory
@click.option("--json", "as_json", is_flag=True, help="print one problem per line as JSON")
@click.option("--all", "is_all", is_flag=True, help=f"show all problems, not only {_SHOWN_PER_KIND} per kind")
def check(directory: Path, config: StoreConfig | None, as_json: bool, is_all: bool) -> int:
    """Verify a store: every record, queue entry, index entry and file against the others.

    Read-only. Exit status 1 if there are problems.
    """
    from spark_rocket.store.problems import ProblemKind
    from spark_rocket.store.read_only import paths_of
    from spark_rocket.store.tools.check import check_store, remedy_of

    notes: list[str] = []
    with Bar() as bar:
        problems = check_store(directory, config, progress=bar, notes=notes)
    kinds = list(ProblemKind)
    problems.sort(key=lambda problem: (kinds.index(problem.kind), problem.path, problem.offset))
    counts = Counter(problem.kind for problem in problems)
    for problem in problems if is_all or as_json else _first_of_each_kind(problems):
        text = json.dumps(asdict(problem), ensure_ascii=False, default=str) if as_json else str(problem)
        print(escape_controls(text))
    if not as_json:
        hidden = sum(max(count - _SHOWN_PER_KIND, 0) for count in counts.values())
        if hidden and not is_all:
            print(f"… and {hidden:,} more; use --all")
        paths = paths_of(directory, config)
        for remedy, about in _grouped((remedy_of(problem, paths), problem.kind) for problem in problems):
            print(f"remedy: {', '.join(about)}: {remedy.replace('DIR', str(directory))}")
        for note in notes:
            print(f"note: {note}")
        total = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        print(f"{directory}: {len(problems):,} problem(s): {total}" if problems else f"{directory}: no problems")
    return 1 if problems else 0


def _grouped(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    groups: dict[str, dict[str, None]] = {}
    for key, value in pairs:
        groups.setdefault(key, {})[value] = None
    return ((key, list(values)) for key, values in groups.items())


def _first_of_each_kind(problems: Iterable[StoreProblem]) -> Iterable[StoreProblem]:
    shown: Counter[str] = Counter()
    for problem in problems:
        shown[problem.kind] += 1
        if shown[problem.kind] <= _SHOWN_PER_KIND:
            yield problem


# --- dump ------------------------------------------------------------------------------------------------------------


@store.command(
    short_help="print messages",
    epilog="Example: rocket store dump rocket-data --topic orders --since 2026-11-21T08:00 --json | head",
)
@_directory
@_topics_option
@click.option("-q", "--queue", type=number, metavar="ID", help="only this queue id")
@click.option("--from-offset", type=number, metavar="N", help="first queue offset")
@click.option("--to-offset", type=number, metavar="N", help="last queue offset (inclusive)")
@click.option("--since", type=past, metavar="TIME", help="stored at or after: 2026-11-21T08:00 (local), ms or 2h (ago)")
@click.option("--until", type=moment, metavar="TIME", help="stored at or before")
@click.option("-k", "--key", metavar="KEY", help="only messages with this key or unique key")
@click.option("--at", type=number, metavar="PHYSICAL", help="only the message at this commit log offset")
@click.option("--by-queue", is_flag=True, help="order by topic, queue and offset")
@click.option("-n", "--limit", type=limit, metavar="N", help="maximum number")
@click.option("--json", "as_json", is_flag=True, help="print one message per line as JSON, with all fields")
def dump(
    directory: Path,
    config: StoreConfig | None,
    topics: tuple[str, ...],
    queue: int | None,
    from_offset: int | None,
    to_offset: int | None,
    since: int | None,
    until: int | None,
    key: str | None,
    at: int | None,
    by_queue: bool,
    limit: int | None,
    as_json: bool,
) -> int:
    """Print messages in the order of the log, or queue by queue.

    Damaged parts of the log are reported on stderr and skipped; intact messages after them are printed. Exit status 1
    if there is damage.
    """
    from spark_rocket.protocol.record.record import RecordView
    from spark_rocket.store.read_only import open_read_only
    from spark_rocket.store.tools.dump import DumpFilter, dump_log, dump_queues, empty_reason, to_json

    wanted = DumpFilter(
        topics=frozenset(topics) or None,
        queue_id=queue,
        min_offset=from_offset,
        max_offset=to_offset,
        begin_ms=since,
        end_ms=until,
        key=key,
        physical_offset=at,
    )
    count, damaged = 0, False
    with open_read_only(directory, config) as view, Bar(is_wanted=not sys.stdout.isatty()) as bar:
        if not as_json:
            print(f"{'stored':<23}  {'topic, queue, offset':<32}  {'at':>14}  {'bytes':>9}  {'tags':<10}  body")
        source = dump_queues(view, wanted) if by_queue else dump_log(view, wanted, progress=bar)
        for found in source:
            if not isinstance(found, RecordView):
                damaged = True
                bar.clear()
                print_problem(f"damaged: {found}")
                continue
            print(escape_controls(json.dumps(to_json(found), ensure_ascii=False) if as_json else _line(found)))
            count += 1
            if count == limit:
                break
        bar.clear()
        if not count:
            print_problem(f"no messages found. {empty_reason(view, wanted)}".rstrip())
        for problem in view.problems:  # problems of a queue are found while it is read
            print_problem(str(problem))
        return 1 if damaged or view.problems else 0


def _line(record: RecordView) -> str:
    from spark_rocket.protocol.record.properties import find_property

    tags = str(find_property(bytes(record.properties), b"TAGS") or b"", "utf-8", "replace")
    place = f"{str(record.topic, 'utf-8', 'replace')}, {record.queue_id}, {record.queue_offset}"
    return (
        f"{moment_text(record.store_timestamp):<29}  {place:<32}  {record.physical_offset:>14}  {record.size:>9,}  "
        f"{tags:<10}  {_preview(bytes(record.body[: 4 * _PREVIEW]))}"
    )


def _preview(body: bytes) -> str:
    """Format the beginning of a body: as text, or as hex if it is not text."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body)  # drops an incomplete last character
    except UnicodeDecodeError:
        text = "\0"
    letters = text[:_PREVIEW]
    if letters.count("\0"):
        return f"0x{body[: _PREVIEW // 2].hex()}{'…' if len(body) > _PREVIEW // 2 else ''}"
    return "".join(letter if letter.isprintable() else "·" for letter in letters) + (
        "…" if len(text) > _PREVIEW else ""
    )


# --- rebuild ---------------------------------------------------------------------------------------------------------


@store.command(
    short_help="rebuild consume queues and index from the log",
    epilog="Example: rocket store rebuild ~/store -c conf/broker.conf --dry-run",
)
@_directory
@click.option("--dry-run", is_flag=True, help="read the whole log and show what would be done, without doing it")
@click.option(
    "--skip-damage",
    is_flag=True,
    help="continue after damage: damaged messages are lost, others keep their offsets; missing or short files of the "
    "log are filled with zeros",
)
def rebuild(directory: Path, config: StoreConfig | None, dry_run: bool, skip_damage: bool) -> int:
    """Rebuild consume queues and index from the commit log.

    They are built next to the old files and replace them when everything is on disk. Messages in the log are not
    changed. If the log is damaged, the rebuild is refused and nothing is written.
    """
    from spark_rocket.store.tools.rebuild import rebuild_store

    with Bar() as bar:
        report = rebuild_store(directory, config, skip_damage=skip_damage, dry_run=dry_run, progress=bar)
    for damage in report.damage:
        print_problem(f"damaged: {damage}")
    for hole in report.holes:
        print_problem(str(hole))
    built = "would be rebuilt" if dry_run else "rebuilt"
    sizes = report.config
    print(f"{directory}: {report.records:,} messages in the log")
    print(
        f"consume queues {built}: {report.queues:,} with {report.entries:,} entries, "
        f"files of {sizes.mapped_file_size_consume_queue:,} bytes"
    )
    if report.kept:
        print(f"consume queues retained (no messages in the log): {report.kept:,}")
    if sizes.message_index_enable:
        limits = f"{sizes.max_hash_slot_num:,} slots and {sizes.max_index_num:,} keys per file"
        print(f"index {built}: {report.keys:,} keys, {limits}")
    for path in report.filled:
        print(f"{path} {'would be ' if dry_run else ''}filled with zeros")
    if report.lower_checkpoint_to >= 0:
        print(f"checkpoint {'would be ' if dry_run else ''}reset to {moment_text(report.lower_checkpoint_to)}")
    if dry_run:
        print("Nothing was changed (--dry-run).")
    return 1 if report.damage or report.holes else 0


# --- stats -----------------------------------------------------------------------------------------------------------


@store.command(short_help="sizes per topic and queue", epilog="Example: rocket store stats ~/store --topic orders")
@_directory
@_topics_option
@click.option("--scan", is_flag=True, help="read the log instead of the consume queues")
@click.option("--json", "as_json", is_flag=True, help="print one queue per line as JSON, then a line with the totals")
def stats(directory: Path, config: StoreConfig | None, topics: tuple[str, ...], scan: bool, as_json: bool) -> int:
    """Show messages, bytes, offsets and times of every queue, and the disk usage of the files.

    The numbers come from the consume queues, which contain the size of each message.
    """
    from spark_rocket.store.read_only import open_read_only
    from spark_rocket.store.tools.dump import DumpFilter, empty_reason
    from spark_rocket.store.tools.store_stats import store_stats

    wanted = frozenset(topics) or None
    with open_read_only(directory, config) as view, Bar(is_bytes=scan) as bar:
        stats = store_stats(view, wanted, scan=scan, progress=bar)
        problems = list(view.problems)
    for problem in (*problems, *stats.damage):
        print_problem(str(problem))
    stats.queues.sort(key=lambda queue: (-queue.bytes, queue.topic, queue.queue_id))
    if as_json:
        _print_json_stats(stats)
    else:
        _print_stats(directory, stats, scan)
    if wanted and not stats.queues:
        print_problem(empty_reason(view, DumpFilter(topics=wanted)) or "topic not found")
        return 1
    return 1 if problems or stats.damage else 0


def _print_json_stats(stats: StoreStats) -> None:
    for queue in stats.queues:
        print(json.dumps(camel(asdict(queue)), ensure_ascii=False))
    totals = {name: value for name, value in asdict(stats).items() if name not in ("queues", "damage")}
    print(json.dumps(camel(totals), ensure_ascii=False))


def _print_stats(directory: Path, stats: StoreStats, is_scan: bool) -> None:
    by_topic: dict[str, list[QueueStats]] = {}
    for queue in stats.queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    rows = [("topic", "queue", "messages", "bytes", "offsets", "first stored", "last stored")]
    for topic, queues in sorted(by_topic.items(), key=lambda pair: (-sum(queue.bytes for queue in pair[1]), pair[0])):
        messages, size = sum(queue.messages for queue in queues), sum(queue.bytes for queue in queues)
        first = min((queue.first_store_time for queue in queues if queue.first_store_time >= 0), default=-1)
        last = max(queue.last_store_time for queue in queues)
        rows.append(
            (topic, f"all {len(queues)}", f"{messages:,}", size_text(size), "", moment_text(first), moment_text(last))
        )
        rows += [
            (
                "",
                str(queue.queue_id),
                f"{queue.messages:,}",
                size_text(queue.bytes),
                f"{queue.min_offset:,} to {queue.max_offset:,}",
                moment_text(queue.first_store_time),
                moment_text(queue.last_store_time),
            )
            for queue in queues
        ]
    if stats.queues:
        print_table(rows, right={1, 2, 3})
        print()
    span = stats.log_max_offset - stats.log_min_offset
    until = f"{stats.log_max_offset:,}: {size_text(span)}" if span >= 0 else "?: the consume queues are empty"
    print(f"{directory}")
    print(f"  log offsets     {stats.log_min_offset:,} to {until}")
    print(f"  stored          {moment_text(stats.first_store_time)} to {moment_text(stats.last_store_time)}")
    entries = f", {stats.index_entries:,} entries" if stats.index_entries >= 0 else " (entries: give -c broker.conf)"
    for name, files, more in (
        ("commitlog", stats.log, ""),
        ("consumequeue", stats.consume_queues, f", {len(stats.queues):,} queues"),
        ("index", stats.index, entries if stats.index.count else ""),
        ("all files", stats.everything, ""),
    ):
        print(f"  {name:<14}  {_files(files)}{more}")
    source = "the log" if is_scan else "the consume queues; --scan reads the log instead"
    print(f"  source of messages and bytes: {source}")


def _files(files: FileUsage) -> str:
    word = "file" if files.count == 1 else "files"
    return f"{files.count:,} {word} of {size_text(files.size)}, {size_text(files.on_disk)} on disk"
