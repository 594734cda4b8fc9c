"""Between the messaging service's messages and stored records: messages, names, filters, statuses."""
