"""The whole of it: each module beneath has one family of methods, and each builds on the one before.

name_servers → brokers → topics → groups → offsets → messages → tracing → accounts

Thread-safety: all methods. Corresponds to org.apache.rocketmq.tools.admin.DefaultMQAdminExt.
"""

from __future__ import annotations

from spark_rocket.client.admin.accounts import AccountAdmin


class Admin(AccountAdmin):
    """``with Admin("127.0.0.1:9876") as admin: admin.create_topic("orders", queues=8)``

    Topics are created on brokers, which register them; they are deleted on brokers and on name servers. Where
    ``broker`` is asked for, it is a broker's name or its address.
    """
