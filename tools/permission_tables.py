"""The tables of permissions in the guides, from the requests that each pipeline sends.

``spark_rocket/protocol/requests/pipelines.py`` declares the requests, ``PIPELINES`` here has the names of pipelines in
both languages. ``generated_tables`` writes the tables into the pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_rocket.protocol.requests import pipelines
from spark_rocket.protocol.requests.needs import Resource
from spark_rocket.protocol.requests.pipelines import Granted, PipelineRequests

KINDS = ("ACL-1.0", "ACL-2.0")

PIPELINES: dict[str, tuple[str, str]] = {
    pipelines.READ.name: ("batch read", "批量读取"),
    pipelines.TIME.name: ("read from a time", "按时间读取"),
    pipelines.GROUP.name: ("read from the offsets of a group", "从消费组的位点读取"),
    pipelines.LOOK_UP.name: ("read with `lookupKeys`", "用 `lookupKeys` 读取"),
    pipelines.STREAM.name: ("stream", "流式读取"),
    pipelines.DEAD_LETTERS.name: ("read with `badRecords=deadLetter`", "用 `badRecords=deadLetter` 读取"),
    pipelines.WRITE.name: ("write, batch or stream", "写入（批量或流式）"),
    pipelines.EXACTLY_ONCE.name: ("exactly-once batch", "精确一次批量写入"),
    pipelines.EXACTLY_ONCE_STREAM.name: ("exactly-once stream", "精确一次流式写入"),
    pipelines.EXACTLY_ONCE_DELAYED.name: (
        "exactly once with delayed rows (`delayLevel`, `deliverAt`)",
        "精确一次写入有延时的行（`delayLevel`、`deliverAt`）",
    ),
    pipelines.MESSAGES_VIEW.name: ("view `messages`", "视图 `messages`"),
    pipelines.DLQ_VIEW.name: ("view `dlq`", "视图 `dlq`"),
    pipelines.LAG_VIEW.name: ("view `lag` of a group", "一个消费组的视图 `lag`"),
    pipelines.VIEWS.name: ("other views, of all groups and topics", "其他视图（所有主题和消费组）"),
    pipelines.CONSOLE.name: ("the console, to look", "控制台（只查看）"),
    pipelines.LAG.name: ("`rocket group lag`", "`rocket group lag`"),
    pipelines.EXPORT.name: ("`rocket message export`", "`rocket message export`"),
    pipelines.DOCTOR.name: ("`rocket doctor -t … --write …`", "`rocket doctor -t … --write …`"),
}
"""The name of each pipeline in English and Chinese, in the order of the tables."""
_HEADS = (("pipeline", "topics", "groups", "cluster"), ("作业", "主题", "消费组", "集群"))
_ANY_ACCOUNT = ("any account", "任何账号")


def table(kind: str, language: int) -> str:
    """The table of a kind of access control, in English (0) or Chinese (1). Pipelines with equal rows share one."""
    declared = {pipeline.name: pipeline for pipeline in pipelines.PIPELINES}
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, titles in PIPELINES.items():
        rows.setdefault(_cells(declared[name], kind, language), []).append(titles[language])
    columns = 4 if kind == "ACL-2.0" else 3
    separator = "、" if language else ", "
    lines = [_HEADS[language][:columns], ("---",) * columns]
    lines += [(separator.join(titles), *cells)[:columns] for cells, titles in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(pipeline: PipelineRequests, kind: str, language: int) -> tuple[str, ...]:
    """The permissions on topics, groups and the cluster."""
    granted = pipeline.policies() if kind == "ACL-2.0" else pipeline.plain_permissions()
    if not granted:
        return _ANY_ACCOUNT[language], "–", "–"
    return tuple(
        _cell([one for one in granted if one.resource is resource])
        for resource in (Resource.TOPIC, Resource.GROUP, Resource.CLUSTER)
    )


def _cell(granted: Sequence[Granted]) -> str:
    by_actions: dict[tuple[str, ...], list[str]] = {}
    for one in granted:
        by_actions.setdefault(one.actions, []).append(f" `{one.name}`" if one.name else "")
    return (
        "; ".join(", ".join(actions) + ":"[: any(names)] + ",".join(names) for actions, names in by_actions.items())
        or "–"
    )
