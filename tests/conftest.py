"""For all tests. Spark's JVMs live for seconds here: its second compiler and its parallel collector only cost time."""

from __future__ import annotations

import os

os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
