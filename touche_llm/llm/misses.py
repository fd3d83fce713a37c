"""Description of the answers that a replay needs and the cache lacks."""

from __future__ import annotations

from touche_llm.llm.cache import Cache
from touche_llm.llm.request import Request

_MAX_LISTED = 3


def describe_misses(misses: list[Request], cache: Cache) -> str:
    """Return which answers are missing, the likely reasons, and what to do."""
    by_reason: dict[str, list[Request]] = {}
    for request in misses:
        by_reason.setdefault(_find_reason(request, cache), []).append(request)
    lines = [f"{cache.path}: the cache lacks {len(misses)} of the answers that the run needs"]
    for reason, requests in by_reason.items():
        subjects = "; ".join(request.origin.subject for request in requests[:_MAX_LISTED])
        more = f" and {len(requests) - _MAX_LISTED} more" if len(requests) > _MAX_LISTED else ""
        lines.append(f"  {reason}: {subjects}{more}")
    is_cassette = cache.path.suffix == ".jsonl"
    first = "import it into a cache (touche-llm cache import) and " if is_cassette else ""
    lines.append(f"{first}run with --cache-mode reuse and a server to request them")
    return "\n".join(lines)


def _find_reason(request: Request, cache: Cache) -> str:
    """Return why an answer is missing, judged by the entries for the same topic and document."""
    origin = request.origin
    prompt = f"prompt {origin.prompt} version {origin.prompt_version} ({origin.prompt_hash})"
    entries = cache.find("answer", topic=origin.topic_id, document=origin.document_id)
    if not entries:
        return f"{prompt}: no usable answer is stored (never requested, or the request failed)"
    entries = [entry for entry in entries if entry.prompt == origin.prompt]
    if not entries:
        return f"{prompt}: only answers to other prompts are stored for the same topic and document"
    if origin.prompt_hash not in {entry.prompt_hash for entry in entries}:
        stored = sorted({f"{entry.prompt} version {entry.prompt_version} ({entry.prompt_hash})" for entry in entries})
        return f"{prompt}: the prompt changed, the cache has {', '.join(stored)}"
    models = sorted({entry.model for entry in entries})
    if request.model not in models:
        return f"{prompt}: the cache has answers of {', '.join(models)}, not of {request.model}"
    return f"{prompt}: prompt and model are the same; the topic, the document or a setting changed"
