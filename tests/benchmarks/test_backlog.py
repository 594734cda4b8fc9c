"""A backlog of 2 billion messages in 256 queues, planned to its end."""

from __future__ import annotations

from benchmarks.backlog import BACKLOG, QUEUES, StoredBacklog, backlog_options, micro_batches


def test_a_backlog_is_planned_to_its_end_in_equal_micro_batches() -> None:
    limit = 100_000_000
    stored = StoredBacklog(BACKLOG)
    options = backlog_options(maxOffsetsPerTrigger=str(limit), maxRecordsPerPartition="1000000")
    done = dict.fromkeys(stored.ends, 0)
    ahead = []
    for end, tasks in micro_batches(stored, options):
        spans = [span for task in tasks for span in task]
        assert sum(span.size for span in spans) == limit
        assert max(span.size for span in spans) <= 1_000_000
        for span in spans:
            assert span.start == done[span.queue], "neither gap nor overlap"
            done[span.queue] = span.end
        assert done == dict(end.ends)
        shares = [done[queue] / last for queue, last in stored.ends.items()]
        ahead.append(max(shares) - min(shares))
    assert len(ahead) == BACKLOG // limit
    assert done == stored.ends
    assert len(done) == QUEUES
    assert max(ahead) < 0.001, "long and short queues are caught up together"
