"""The brokers of a cluster, asked over Remoting."""
