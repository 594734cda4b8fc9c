"""Conversion between the messaging service and stored records: messages, names, filters, statuses."""
