"""Driver of RankLLM for `benchmarks.peers`: reranks a file of requests and prints one line of JSON.

It runs in RankLLM's own environment, with nothing of this project.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# RankLLM's own template sends messages of the roles `query` and `document`. Only rerankers such as
# Qwen3-Reranker have these in their chat template; that of a chat model drops them, and all
# documents get one prompt. This one puts the same words into a system and a user message.
_TEMPLATE = """method: pointwise
system_message: Answer with yes or no alone.
body: |
  Instruction: Given a web search query, retrieve relevant passages that answer the query

  Query: {query}

  Document: {doc_content}
"""


async def rerank(requests_file: str, model_name: str, **options: Any) -> dict[str, Any]:
    """Return the seconds, the scores, and the number of answers that never came."""
    from rank_llm.data import read_requests_from_file
    from rank_llm.rerank.pointwise.pointwise_vllm import PointwiseVLLM

    requests = read_requests_from_file(requests_file)
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "pointwise.yaml"
        template.write_text(_TEMPLATE)
        model = PointwiseVLLM(model_name, prompt_template_path=template, **options)
    depth = max(len(request.candidates) for request in requests)
    started = time.perf_counter()
    # The synchronous method loses answers where its event loop is closed before its connections.
    results = await model.rerank_batch_async(
        requests, rank_end=depth, populate_invocations_history=True
    )
    seconds = time.perf_counter() - started
    calls = [call for result in results for call in result.invocations_history]
    return {
        "seconds": seconds,
        "scores": [candidate.score for result in results for candidate in result.candidates],
        "lost": sum(not call.output_token_count for call in calls),
    }


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # RankLLM prints
        report = asyncio.run(rerank(**json.loads(sys.argv[1])))
    print(json.dumps(report))
