"""Where the log of a killed broker ends, for who only looks at it: what its next start would cut off is not read.

A record's or a batch's first four bytes are written last. A process that is killed before leaves a size of zero, and
behind it may lie whole records: of a long batch, which nobody was told is stored. The next start cuts the log there
(recovery.py); tools and ``storePath`` must neither serve what it cuts off nor call it damage.

The rule is recovery's, but stricter, because nobody is asked to start anything: the size is zero, the store was not
stopped cleanly, and no whole record behind is older than what the checkpoint says was flushed. All else is for the
reader to judge. Looked at is what recovery looks at, from the file before the checkpoint's time on; without a
checkpoint only the last two files. Bodies are not checked here: who reads them does.

Reads files only. Corresponds to a part of CommitLog.recoverAbnormally.
"""

from __future__ import annotations

import logging

from spark_rocket.errors import StoreCorruptError
from spark_rocket.store.log.record_scan import LogScan, Stop, look_behind
from spark_rocket.store.recovery.checkpoint import Checkpoint
from spark_rocket.store.tools.view import StoreView

_log = logging.getLogger(__name__)
_HEAD = 4096


def cut_of(view: StoreView) -> int | None:
    """The offset where a killed broker's log ends; None if it was stopped cleanly, or what is there is damage."""
    if not view.is_killed or not view.log.files:
        return None
    checkpoint = Checkpoint(view.path / "checkpoint")
    try:
        checkpoint.load()
    except (StoreCorruptError, OSError):  # the start refuses
        return None
    flushed = checkpoint.physic_msg_timestamp
    newest = 0
    scan = LogScan(view.log, _start(view, checkpoint), check_crc=False)
    for block in scan:
        newest = max(newest, int(block.store_timestamps.max()))
    end = scan.end.offset
    file = view.log.find(end)
    if scan.end.stop not in (Stop.BAD, Stop.END) or file is None:
        return None
    at = end - file.file_from_offset
    if file.read(at, 4) != bytes(4):
        return None
    good = look_behind(view.log, end).good_offsets
    if newest < flushed or any(_stored_at(view, offset) < flushed for offset in good or []):
        return None
    if good:
        _log.warning(
            "%s at byte %d (offset %d): the log of a broker that was killed ends here. Whole records lie behind it, "
            "which were never flushed; its next start cuts them off.",
            file.path,
            at,
            end,
        )
    return end


def _start(view: StoreView, checkpoint: Checkpoint) -> int:
    files = view.log.files
    if not checkpoint.existed:
        return files[max(len(files) - 2, 0)].file_from_offset
    for index, file in enumerate(files):
        stored = _stored_at(view, file.file_from_offset)
        if stored > checkpoint.recover_timestamp or stored < 0:
            return files[max(index - 1, 0)].file_from_offset
    return files[-1].file_from_offset


def _stored_at(view: StoreView, offset: int) -> int:
    """The store time of the record at an offset; -1 if none is there."""
    for block in LogScan(view.log, offset, check_crc=False, chunk=_HEAD):
        return int(block.store_timestamps[0])
    return -1
