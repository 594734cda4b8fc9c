"""The rows of all requests to brokers.

One request of 1 MiB may cost 100 ms of CPU time and 32 MiB of memory. The bounds allow what Apache's clients and tools
send to a broker with 10,000 topics, and heartbeats with 500 consumer groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_rocket.protocol.requests.accounts import ACCOUNTS
from spark_rocket.protocol.requests.admin import ADMIN
from spark_rocket.protocol.requests.clients import CLIENTS
from spark_rocket.protocol.requests.messages import MESSAGES
from spark_rocket.protocol.requests.offsets import OFFSETS
from spark_rocket.protocol.requests.pop import POP
from spark_rocket.protocol.requests.request_type import RequestType, table

BROKER_REQUESTS: Mapping[int, RequestType] = table(
    *(row for family in (MESSAGES, POP, CLIENTS, OFFSETS, ADMIN, ACCOUNTS) for row in family.values())
)
"""Request code -> its row."""
