"""POP: messages taken from a queue by any member of a group, each for a time, acked one by one.

=====================  ================================================================================================
module                 what it is
=====================  ================================================================================================
service.py             :class:`PopService`: pop, ack, change of the invisible time; what the processors call
requests.py            a pop's request and result, and messages of retry topics as their consumers know them
check_points.py        check points and acks as values and as the JSON of the revive log
revive_log.py          writes them into the log, and recovers groups' offsets from it after a kill
acks.py                checks receipts, and gathers acks on their way there
revive.py              reads them there when their time comes, and gives what was not acked to the retry topic
waiting.py, order.py   pops that wait for messages; queues that are popped in order
=====================  ================================================================================================

Corresponds to broker.processor.{PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor,
PopReviveService}.
"""
