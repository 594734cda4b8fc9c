"""Accounts and permissions: Apache's ACL 1.0 and 2.0, for brokers and for the gRPC proxy.

``rules`` parses ``plain_acl.yml``, ``addresses`` its white lists; ``accounts_file`` changes the file; ``control`` has
the rules in force and decides about requests, on the event loop of its server."""
