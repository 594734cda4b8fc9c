"""POP: any member of a group takes messages of any queue, invisible for a time, and acks them one by one.

==============================  =======================================================================================
module                          contents
==============================  =======================================================================================
pop_service.py                  :class:`PopService`: pop, ack, change of the invisible time; called by the processors
requests.py                     a pop's request and result; messages of retry topics as consumers see them
turns.py                        which queues of a topic one request examines
check_points.py                 check points and acks, as values and as JSON of the revive log
revive_log.py                   writes check points and acks into the log; recovers groups' offsets from it after a kill
acks.py                         checks receipts, and batches acks for the log
revive.py                       reads the log when check points are due; puts unacked messages into the retry topic
consumer_order_info_manager.py  queues that are popped in order
==============================  =======================================================================================

Corresponds to broker.processor.{PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor,
PopReviveService}.
"""
