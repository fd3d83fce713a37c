"""Driver of RankLLM for `benchmarks.peers`: reranks a file of requests and prints one line of JSON.

It runs in RankLLM's own environment, with nothing of this project. Listwise reranking refuses to start unless a module
`vllm` can be imported, also over HTTP, where nothing of it is used. An empty one takes its place, which spares RankLLM
the time and the memory of that import.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

# RankLLM's own pointwise template sends messages of the roles `query` and `document`. Only rerankers such as
# Qwen3-Reranker have these in their chat template; that of a chat model drops them, and all documents get one prompt.
# This one puts the same words into a system and a user message.
_POINTWISE = """method: pointwise
system_message: Answer with yes or no alone.
body: |
  Instruction: Given a web search query, retrieve relevant passages that answer the query

  Query: {query}

  Document: {doc_content}
"""


def import_rerankers() -> tuple[Any, Any]:
    """Return RankLLM's classes for pointwise and for listwise reranking over HTTP."""
    sys.modules["vllm"] = types.ModuleType("vllm")
    from rank_llm.rerank.listwise.rank_listwise_os_llm import RankListwiseOSLLM
    from rank_llm.rerank.pointwise.pointwise_vllm import PointwiseVLLM

    return PointwiseVLLM, RankListwiseOSLLM


async def rerank(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds, the scores, and the answer to each request with its tokens, 0 if none came."""
    pointwise, listwise = import_rerankers()
    from rank_llm.data import read_requests_from_file

    requests = read_requests_from_file(options.requests)
    depth = max(len(request.candidates) for request in requests)
    shared = {"base_url": f"{options.url}/v1", "context_size": options.context, "batch_size": options.concurrency}
    if options.window is None:
        with tempfile.TemporaryDirectory() as folder:
            template = Path(folder) / "pointwise.yaml"
            template.write_text(_POINTWISE)
            model = pointwise(options.model, prompt_template_path=template, **shared)
    else:
        model = listwise(options.model, window_size=options.window, stride=options.stride, **shared)
    started = time.perf_counter()
    # The synchronous method loses answers where its event loop is closed before its connections.
    results = await model.rerank_batch_async(requests, rank_end=depth, populate_invocations_history=True)
    seconds = time.perf_counter() - started
    calls = [call for result in results for call in result.invocations_history]
    return {
        "seconds": seconds,
        "documents": [candidate.docid for result in results for candidate in result.candidates],
        "scores": [candidate.score for result in results for candidate in result.candidates],
        "replies": [{"text": call.response, "tokens": call.output_token_count} for call in calls],
    }


def main() -> None:
    """Rerank the requests, or without their file only import what that takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", help="File of topics with their candidates, as RankLLM reads it.")
    parser.add_argument("--model", help="Folder of the model, relative, so that it is the served name as well.")
    parser.add_argument("--url")
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--context", type=int)
    parser.add_argument("--window", type=int, help="Documents in a window of listwise reranking; else pointwise.")
    parser.add_argument("--stride", type=int)
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # RankLLM prints
        if options.requests is None:
            import_rerankers()
            return
        report = asyncio.run(rerank(options))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
