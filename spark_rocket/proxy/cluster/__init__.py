"""The brokers of a cluster, called over Remoting."""
