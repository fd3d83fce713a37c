"""Fields of a topic, as files have them."""

from __future__ import annotations

from typing import Any

# In the order of the files that `write_topics` writes.
TOPIC_FIELDS = ("title", "description", "narrative", "objects")
# Values of a topic by field; `objects` may be a list from JSON.
TopicFields = dict[str, Any]
