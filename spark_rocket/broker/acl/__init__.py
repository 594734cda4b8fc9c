"""Access control of a broker's Remoting requests: ``needs`` has the permissions required, ``control`` checks them."""
