"""Import of batch responses into the answer cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from touche_llm.batch.stage_run import ENGINE, Batch, apply_overlay, check_cache, make_model, run_stage
from touche_llm.errors import DataError, ToucheError
from touche_llm.llm.answers import OUTCOMES, UnusableAnswer
from touche_llm.llm.engines.batch import BatchEngine
from touche_llm.llm.engines.batch_replies import Replies, read_replies
from touche_llm.llm.engines.dry_run import OverlayCache
from touche_llm.llm.model import NOTHING_LOST, LostRequests
from touche_llm.pipeline.engines import store_engine_info
from touche_llm.pipeline.progress import Progress


@dataclass(slots=True)
class Import:
    """Outcomes of an import; each response is counted once.

    Attributes:
        stored: Number of answers that were added to the cache.
        unusable: Reasons of the unusable answers, by kind.
        errors: Messages of the responses without an answer, by kind.
        refused: Number of requests among `errors` that are recorded as failed; they are not sent again.
        unanswered: Messages of the others, by key of the request, which stays pending.
        repeated: `file:line` of each response to a request that has an answer or an earlier response.
        done: Whether no request is pending.
        failed: Number of requests with only unusable answers in all samples.
    """

    stored: int = 0
    unusable: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, list[str]] = field(default_factory=dict)
    refused: int = 0
    unanswered: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    done: bool = False
    failed: int = 0


async def import_replies(
    batch: Batch,
    folder: Path,
    paths: Sequence[Path],
    progress: Progress,
    *,
    lost: LostRequests = NOTHING_LOST,
) -> Import:
    """Store responses in the cache like answers of a server: those of all files, or none.

    A request that the engine rejected is stored as failed. Other requests without an answer stay pending: an error of
    the server, as over HTTP, is never stored. Requests in `lost` are not sent again.

    Raises:
        DataError: A line is not a response, or answers no request of the export; names file and line. Nothing is
            stored.
        ToucheError: The stage failed with these answers. They are stored.
    """
    config = batch.config
    check_cache(config)
    replies = read_replies(paths, batch.facts.model)
    result = Import(repeated=list(replies.repeated))
    with OverlayCache(config.cache.file) as cache:
        engine = BatchEngine(replies, None, is_import=True)
        model = make_model(config, batch.facts, engine, cache, lost)
        problem: ToucheError | None = None
        try:
            result.done = await run_stage(batch.stage, config, folder, progress, model)
        except ToucheError as error:
            problem = error  # Raised once the answers are stored.
        # The overlay iterates over its own entries only.
        failed = {
            entry.key: entry.read(UnusableAnswer) for entry in cache.iterate_entries() if entry.kind == "unusable"
        }
        unused = _count_unanswered(replies, engine, cache, failed, result)
        if unused and problem is None:
            raise DataError(
                f"{unused[0]}: the id is neither that of a pending request of {folder} nor that of an answer in the "
                "cache; nothing of these files is stored; import responses to the last export of this folder"
            )
        for key, answer in failed.items():
            if key in engine.taken:
                result.unusable.setdefault(answer.kind, []).append(answer.reason)
        result.stored = len(engine.taken - failed.keys())
        result.failed = model.counts.failures
        if result.stored or failed:
            name = f"{ENGINE}, {engine.fingerprint}" if engine.fingerprint else ENGINE
            store_engine_info(batch.facts.model_copy(update={"engine": name}), cache)
        apply_overlay(cache, config)
    if problem is not None:
        if unused:
            progress.warn(f"{len(unused):,} responses were not reached and are not stored; import them again later")
        raise problem
    return result


def _count_unanswered(
    replies: Replies, engine: BatchEngine, cache: OverlayCache, failed: dict[str, UnusableAnswer], result: Import
) -> list[str]:
    """Add the responses without a new answer to the result; return `file:line: id` of responses to unknown requests."""
    unused: list[str] = []
    for key, reply in replies.by_key.items():
        if key in engine.taken:
            continue
        if key not in failed and cache.get(key, OUTCOMES) is not None:
            result.repeated.append(reply.place)
            continue
        problem = reply.find_problem(engine.pending[key]) if key in engine.pending else reply.problem
        if problem is None or not (key in engine.pending or key in failed):
            unused.append(f"{reply.place}: {key:.80}")
            continue
        result.errors.setdefault(problem.kind, []).append(problem.reason)
        if key in failed:
            result.refused += 1
        else:
            result.unanswered[key] = problem.reason
    return unused
