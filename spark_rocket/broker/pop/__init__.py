"""POP: messages taken from a queue by any member of a group, each for a time, acked one by one.

=====================  ================================================================================================
module                 what it is
=====================  ================================================================================================
service.py             :class:`PopService`: pop, ack, change of the invisible time; what the processors call
result.py              what a pop found
receipts.py            which receipts are taken
hooks.py               what the service and the processors ask of others: order of queues, waiting of requests
check_points.py        check points and acks as values and as the JSON of the revive log
revive_log.py          writes them into the log
acks.py                gathers acks on their way there
revive.py              reads them there when their time comes, and gives what was not acked to the retry topic
retry_records.py       messages of retry topics as their consumers know them
recovery.py            where groups go on after a kill
waiting.py, order.py   the two hooks: pops that wait for messages; queues that are popped in order
=====================  ================================================================================================

Corresponds to broker.processor.{PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor,
PopReviveService}.
"""
