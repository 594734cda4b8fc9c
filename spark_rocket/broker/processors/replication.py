"""What tools ask of replication (907) and of messages that wait for their time (61).

Of the timer's counts Apache's broker keeps a file; here they are counted in the timer log when they are asked for,
without what of the present second is delivered already. A recall counts −1, as there.

Corresponds to AdminBrokerProcessor.{getBrokerHaStatus, getTimerMetrics} and DefaultHAService.getRuntimeInfo.
"""

from __future__ import annotations

from spark_rocket.broker.processors.base import Processor, answers
from spark_rocket.errors import RefusedError
from spark_rocket.protocol.filter.tags import java_hash
from spark_rocket.protocol.wire.bodies.config import DataVersion
from spark_rocket.protocol.wire.bodies.stats import (
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    TimerMetric,
    TimerMetricsSerializeWrapper,
)
from spark_rocket.protocol.wire.codes import RequestCode, ResponseCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.server import Channel


class ReplicationProcessor(Processor):
    """Answers for the parts that work by themselves."""

    @answers(RequestCode.GET_BROKER_HA_STATUS)
    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        info = HARuntimeInfo(master=service.slave is None)
        if service.slave is not None:
            info.ha_client_runtime_info = self._as_slave()
        else:
            end = info.master_commit_log_max_offset = service.store.max_physical_offset
            gap = service.config.ha_max_gap_not_in_sync
            for slave in service.replication.slaves:
                acked = max(slave.acked, 0)
                info.ha_connection_info.append(
                    HAConnectionRuntimeInfo(
                        addr=slave.address,
                        slave_ack_offset=acked,
                        diff=end - acked,
                        in_sync=end - acked < gap,
                        transferred_byte_in_second=slave.bytes_in_second,
                        transfer_from_where=slave.next_offset,
                    )
                )
            info.in_sync_slave_nums = sum(slave.in_sync for slave in info.ha_connection_info)
        return RemotingCommand.response(request, body=info.to_json())

    def _as_slave(self) -> HAClientRuntimeInfo:
        service, slave = self._service, self._service.slave
        assert slave is not None
        read, written = slave.last_heard()
        return HAClientRuntimeInfo(
            master_addr=slave.master_address or None,
            transferred_byte_in_second=slave.bytes_in_second,
            max_offset=service.store.max_physical_offset,
            last_read_timestamp=0 if read is None else service.clock() - int(read * 1000),
            last_write_timestamp=0 if written is None else service.clock() - int(written * 1000),
            activated=slave.is_following,
        )

    @answers(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        service = self._service
        if service.timer is None:
            raise RefusedError("There is no timer here.", response_code=ResponseCode.SYSTEM_ERROR)
        counts, now = service.timer.count_by_topic(), service.clock()
        names = {java_hash(topic): topic for topic in service.topics.table} if counts else {}
        found = {names[code]: TimerMetric(count, now) for code, count in counts.items() if code in names}
        version = DataVersion(timestamp=now, counter=service.timer.slots_done)
        return RemotingCommand.response(request, body=TimerMetricsSerializeWrapper(found, version).to_json())
