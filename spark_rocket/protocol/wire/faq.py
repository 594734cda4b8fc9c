"""The link at the end of some remarks: Apache's servers put it there, its clients and mqadmin show it.

Pure functions. Corresponds to common.help.FAQUrl.suggestTodo of 5.x; 4.9 has another address.
"""

from __future__ import annotations

import re

SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_LINK = re.compile(r"[,\s]*\nSee http\S+ for further details\.\s*\Z")


def without_faq(remark: str) -> str:
    """A remark without the link, where what to do is said in other words."""
    return _LINK.sub("", remark)
