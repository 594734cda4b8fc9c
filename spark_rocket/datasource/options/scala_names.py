"""``format("rocketmq")``: the same source, under the name and with the option names of the old Scala connector.

For pipelines that come from rocketmq-spark. Its names are translated, and everything of ``format("rocket")`` works
beside them:

=====================  ====================  ==================================================================
rocketmq-spark         here
=====================  ====================  ==================================================================
topic (reads)          subscribe
group                  consumerGroup (reads), producerGroup (writes)
subExpression          tags                  ``*`` is all messages, which is to leave it out
pullTimeout,           requestTimeout        milliseconds
pullTimeoutMs
=====================  ====================  ==================================================================

nameServer, topic (writes), startingOffsets, endingOffsets with its JSON, failOnDataLoss, maxOffsetsPerTrigger and
pullBatchSize are called so here too. The columns are those of ``format("rocket")``: where the old ones had
``properties`` as JSON text, it is a map (``to_json(properties)`` gives the text).

Values only; Spark pickles it. Corresponds to rocketmq-spark's RocketMQSourceProvider and RocketMQConf.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.datasource.source import RocketDataSource

_READS = {
    "topic": "subscribe",
    "group": "consumerGroup",
    "subexpression": "tags",
    "pulltimeout": "requestTimeout",
    "pulltimeoutms": "requestTimeout",
}
_WRITES = {"group": "producerGroup"}


class RocketMQDataSource(RocketDataSource):
    """RocketMQ topics as data frames, for those who come from rocketmq-spark."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def _to_read(self, options: Mapping[str, str]) -> dict[str, str]:
        return _translate(options, _READS)

    def _to_write(self, options: Mapping[str, str]) -> dict[str, str]:
        return _translate(options, _WRITES)


def _translate(options: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    from spark_rocket.datasource.options.conditions import error

    translated = {key: text for key, text in options.items() if key.lower() not in names}
    given = {key.lower() for key in translated}
    for key, text in options.items():
        new = names.get(key.lower())
        if new is None or (new == "tags" and text.strip() == "*"):
            continue
        if new.lower() in given:
            raise error("BAD_OPTION.TOGETHER", option=key, other=new, hint=": they are the same")
        given.add(new.lower())
        translated[new] = text
    return translated
