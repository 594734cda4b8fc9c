"""The families of methods of the messaging service."""
