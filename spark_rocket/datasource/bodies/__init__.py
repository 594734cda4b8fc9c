"""Message bodies as typed columns, and back (the option ``bodyFormat``).

==================  ==========================================================================================
module              what
==================  ==========================================================================================
settings            the options of a body format, parsed: values that travel to the tasks
columns             which columns of a schema are the body's and which the message's
decoding            what a decoder gives back, and how a batch with bad records in it keeps its speed
codecs              from settings to a decoder, and the columns that a format defines itself; text and variants
json_uniform,       JSON: uniform bodies without a parser, others by Arrow's parser; what it refuses, value
json_reader,        by value
json_values
csv_reader          CSV by Arrow's parser
arrow_bodies        Arrow IPC streams, many rows in a message
avro, protobuf      by their own libraries, a message at a time
encoding            a frame's columns to a column ``body``
==================  ==========================================================================================
"""
