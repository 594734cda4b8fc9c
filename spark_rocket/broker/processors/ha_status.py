"""The state of replication (907).

Corresponds to AdminBrokerProcessor.getBrokerHaStatus and DefaultHAService.getRuntimeInfo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_rocket.broker.processors.processor import Processor, handles
from spark_rocket.broker.replication.master import ReplicationMaster
from spark_rocket.broker.replication.slave import ReplicationSlave
from spark_rocket.broker.state.broker_config import BrokerConfig
from spark_rocket.protocol.wire.bodies.stats import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from spark_rocket.protocol.wire.codes import RequestCode
from spark_rocket.protocol.wire.command import RemotingCommand
from spark_rocket.remoting.server.channel import Channel
from spark_rocket.store.message_store import MessageStore


@dataclass(eq=False, kw_only=True)
class HaStatusProcessor(Processor):
    """Slaves of a master, or the progress of a slave."""

    config: BrokerConfig
    clock: Callable[[], int]
    store: MessageStore
    replication: ReplicationMaster
    slave: ReplicationSlave | None

    @handles(RequestCode.GET_BROKER_HA_STATUS)
    def ha_status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        info = HARuntimeInfo(master=self.slave is None)
        if self.slave is not None:
            info.ha_client_runtime_info = self._as_slave(self.slave)
        else:
            end = info.master_commit_log_max_offset = self.store.max_physical_offset
            gap = self.config.ha_max_gap_not_in_sync
            for slave in self.replication.slaves:
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

    def _as_slave(self, slave: ReplicationSlave) -> HAClientRuntimeInfo:
        read, written = slave.last_heard()
        return HAClientRuntimeInfo(
            master_addr=slave.master_address or None,
            transferred_byte_in_second=slave.bytes_in_second,
            max_offset=self.store.max_physical_offset,
            last_read_timestamp=0 if read is None else self.clock() - int(read * 1000),
            last_write_timestamp=0 if written is None else self.clock() - int(written * 1000),
            activated=slave.is_following,
        )
