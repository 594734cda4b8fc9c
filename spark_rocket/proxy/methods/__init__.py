"""The methods of the messaging service, in families."""
