"""Message bodies as typed columns, and back (the option ``bodyFormat``).

==================  ==========================================================================================
module              what
==================  ==========================================================================================
settings            the options of a body format, parsed: values that are sent to the tasks
columns             which columns of a schema belong to the body and which to the message
decoding            a decoder's result, and fast decoding of batches with bad records
codecs              the decoder of a body format, and the columns that a format defines itself; text and variants
json_reader,        JSON by Arrow's parser; bodies that it rejects, value by value
json_values
epoch_units         which numbers of JSON bodies count which unit since 1970
csv_reader          CSV by Arrow's parser
arrow_bodies        Arrow IPC streams, many rows per message
avro, protobuf      by their own libraries, one message at a time
encoding            the columns of a data frame to a column ``body``
rendering           columns to JSON and CSV
==================  ==========================================================================================
"""
