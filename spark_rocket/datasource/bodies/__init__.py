"""Message bodies as typed columns, and back (the option ``bodyFormat``).

==================  ==========================================================================================
module              what
==================  ==========================================================================================
settings            the options of a body format, parsed: values that travel to the tasks
columns             which columns of a schema are the body's and which the message's
decoding            what a decoder gives back, and how a batch with bad records in it keeps its speed
codecs              from settings to a decoder, an encoder, and the columns that a format knows by itself
json_reader,        JSON by Arrow's parser; what it refuses is looked at value by value (json_values)
json_values
csv_reader          CSV by Arrow's parser
text_values         columns of texts to decimals, dates and timestamps
arrow_bodies,       Arrow IPC streams, many rows in a message: how large they may become, and which types may
arrow_limits,       become which
arrow_casts
avro, protobuf      by their own libraries, a message at a time
text                text, and variants
text_writer         columns to JSON and CSV, by Arrow's string kernels
encoding            a frame's columns to a column ``body``
==================  ==========================================================================================
"""
