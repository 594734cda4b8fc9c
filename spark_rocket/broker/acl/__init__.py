"""Access control of a broker's Remoting requests: ``needs`` has what each needs, ``control`` checks each."""
