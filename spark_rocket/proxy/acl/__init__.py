"""Access control of the gRPC endpoint, by the accounts of ``plain_acl.yml`` or by the users of the brokers."""
