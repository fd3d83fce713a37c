"""What a replay asked for and the cache does not hold, in words."""

from __future__ import annotations

from touche_llm.llm.cache import Cache
from touche_llm.llm.request import Request

_LISTED = 3


def describe_misses(misses: list[Request], cache: Cache) -> str:
    """Which answers are missing, why, seen from what the cache holds for the same topics, and what to do."""
    reasons: dict[str, list[Request]] = {}
    for request in misses:
        reasons.setdefault(_describe(request, cache), []).append(request)
    lines = [f"{cache.path}: not in the cache: {len(misses)} of the answers that the run needs"]
    for reason, requests in reasons.items():
        places = ", ".join(_place(request) for request in requests[:_LISTED])
        more = f" and {len(requests) - _LISTED} more" if len(requests) > _LISTED else ""
        lines.append(f"  {reason}: {places}{more}")
    cassette = cache.path.suffix == ".jsonl"
    first = "import it into a cache (touche-llm cache import) and " if cassette else ""
    lines.append(f"{first}run with --cache-mode reuse and a server to ask for them")
    return "\n".join(lines)


def _place(request: Request) -> str:
    origin = request.origin
    return f"topic {origin.topic_id}" + (f" document {origin.document_id}" if origin.document_id else "")


def _describe(request: Request, cache: Cache) -> str:
    """Why an answer is missing, seen from what the cache holds for the same topic and document."""
    origin = request.origin
    asked = f"prompt {origin.prompt} version {origin.prompt_version} ({origin.prompt_hash})"
    near = cache.find("answer", topic=origin.topic_id, document=origin.document_id)
    if not near:
        return f"{asked}: no usable answer is stored (never asked, or it got no reply)"
    near = [entry for entry in near if entry.prompt == origin.prompt]
    if not near:
        return f"{asked}: no usable answer to this prompt is stored, but to others for the same topic and document"
    if origin.prompt_hash not in {entry.prompt_hash for entry in near}:
        stored = sorted({f"{entry.prompt} version {entry.prompt_version} ({entry.prompt_hash})" for entry in near})
        return f"{asked}: the prompt changed, the cache has {', '.join(stored)}"
    models = sorted({entry.model for entry in near})
    if request.model not in models:
        return f"{asked}: the cache has answers of {', '.join(models)}, not of {request.model}"
    return f"{asked}: the prompt and the model are the same; the topic, the document or a setting changed"
