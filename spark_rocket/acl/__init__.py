"""Accounts and permissions: Apache's ACL 1.0, for brokers and for the gRPC endpoint alike.

``rules`` is what ``plain_acl.yml`` says, ``addresses`` its white lists, ``accounts_file`` its changes, ``control`` the
rules in force and the decision about one request. What a request needs is known where requests are: in ``broker.acl``
for Remoting, in ``proxy.access`` for gRPC.
"""
