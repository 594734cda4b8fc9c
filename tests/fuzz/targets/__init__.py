"""What is fuzzed: every decoder of bytes or text from outside, what it may raise, and inputs to begin with.

A target takes bytes and returns nothing. Any value is fine, and so are the errors listed, which are those that the
decoder's module promises; anything else is a finding. Some take what they decoded further (encode it again, read the
fields that are decoded late), since that is where a bad value would do its harm.
"""

from tests.fuzz.targets import bodies, brokers, http, options, records, settings, wire
from tests.fuzz.targets.base import TARGETS, Target

__all__ = ["TARGETS", "Target", "bodies", "brokers", "http", "options", "records", "settings", "wire"]
