"""Examination of a server: who answers, what it can do, and whether a run is possible."""

from __future__ import annotations

import msgspec

from touche_llm.data.records import Count
from touche_llm.errors import EngineError
from touche_llm.llm.checks import LABEL_TOKENS, SYSTEM_MESSAGE, ServerCheck, Survey
from touche_llm.llm.engine import BrokenReply, EngineInfo, Rejected, Transient
from touche_llm.llm.http import API_KEY_VARIABLE, HttpClient
from touche_llm.llm.probes import RUN_PROBES, Probes
from touche_llm.llm.request import EMPTY_CHAT, place_system_message
from touche_llm.llm.settings import EngineConfig, PoolingConfig

# Where servers report their versions, by the owner that they give their models, with their names.
_VERSION_PATHS = {
    "vllm": ("vllm", "/version"),
    "llamacpp": ("llama.cpp", "/props"),
    "sglang": ("sglang", "/get_server_info"),
    "library": ("ollama", "/api/version"),
}


async def connect(survey: Survey) -> EngineInfo:
    """Get model and context from a server, and verify that it can do what a run needs.

    Raises:
        EngineError: The server is unreachable, serves another model, or lacks something that the run needs.
    """
    await examine(survey)
    server = survey.server
    for check in survey.checks:
        if check.is_blocking:
            raise EngineError(f"{server.base_url}: {check}")
        if check.is_ok is False or (check.name == LABEL_TOKENS and not check.is_ok and survey.sampling.top_logprobs):
            survey.warn(f"{server.base_url}: {check.name}: {check}")
    return survey.info


async def examine(survey: Survey, probes: Probes = RUN_PROBES) -> None:
    """Find out what a server can do; the survey has the checks.

    Probes that need the schema or instructions are left out if the server lacks these. Probes beyond those of a run
    need schemas of answers with labels alone.

    Raises:
        EngineError: The server is unreachable, serves another model, or answers with several models.
    """
    server = survey.server
    try:
        survey.info, context = await identify(server, survey.engine, "engine")
        server.choose(survey.info.model)
        if waiting := await server.count_waiting():
            survey.warn(f"{server.base_url}: the server is busy: {waiting:,} requests wait")
        survey.checks = [
            ServerCheck("server", True, survey.info.engine),
            ServerCheck("model", True, survey.info.model),
            context,
        ]
        for (name, probe), following in zip(probes.items(), [*list(probes)[1:], ""], strict=True):
            is_possible = survey.probe is not None and not survey.is_blocked(SYSTEM_MESSAGE)
            if is_possible or name in ("schema", "tokens"):
                try:
                    survey.checks += await probe(survey)
                except (Transient, Rejected) as error:
                    if name in RUN_PROBES:
                        raise
                    survey.checks.append(ServerCheck(name, None, f"could not be checked: {error}"))
            survey.step(following)
        overhead = 0
        if not survey.is_blocked():
            chat = place_system_message(EMPTY_CHAT, survey.sampling.system_message)
            overhead = await server.counter.count_tokens(chat)
    except (Transient, Rejected) as error:
        raise describe_failure(server, error, is_known=bool(survey.checks)) from error
    fingerprint = survey.probe and survey.probe.system_fingerprint
    serving = survey.info.serving | ({"fingerprint": fingerprint} if fingerprint else {})
    survey.info = survey.info.model_copy(update={"overhead": overhead, "serving": serving})


def describe_failure(
    server: HttpClient, error: Transient | Rejected, refused: str = "", *, is_known: bool = False
) -> EngineError:
    """Return the error of a start-up check that failed.

    Args:
        server: The server.
        error: Failure of a request.
        refused: How to go on if the server refuses.
        is_known: Whether the server has replied to another request.
    """
    hint = f"is the server running there? It answers once its model is loaded. Set its address with {server.address}"
    if isinstance(error, Transient):
        if error.kind == "timeout" and is_known:
            hint = "the server is busy (it answers other requests); wait, or give requests more time with "
            hint += f"`{server.section}.request_timeout`"
        return EngineError(f"{server.base_url}: {error.reason}; {hint}")
    remedy = f"give its key in {API_KEY_VARIABLE}" if error.status in (401, 403) else refused or hint
    return EngineError(f"{server.base_url}: the server refused the start-up check: {error}; {remedy}")


class _ServedModel(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: Count | None = None
    root: str | None = None
    # The model that a LoRA adapter adapts.
    parent: str | None = None


class _ModelList(msgspec.Struct):
    data: list[_ServedModel]


class _Generation(msgspec.Struct):
    n_ctx: Count | None = None


class _Version(msgspec.Struct):
    version: str = ""
    # Those of llama.cpp, whose context is that of one of its slots.
    build_info: str = ""
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


async def identify(
    server: HttpClient, settings: EngineConfig | PoolingConfig, section: str
) -> tuple[EngineInfo, ServerCheck]:
    """Return what a server says of itself and of the configured model, or of its only one.

    Returns:
        The description of the engine before it is checked, with a context of 0 if it is unknown; and a check that
        blocks if the context is unknown, or the configured one is longer than the served one.

    Raises:
        EngineError: It does not serve the model, or several; the message names the setting.
        Transient, Rejected: It did not reply, or refuses to.
    """
    by_name = {served.id: served for served in (await server.get("/v1/models", _ModelList)).data}
    name = next(iter(by_name)) if settings.model is None and len(by_name) == 1 else settings.model
    if name is None or name not in by_name:
        other = "" if name is None else f", not {name!r}"
        names = ", ".join(by_name) or "no model"
        raise EngineError(f"{server.base_url}: serves {names}{other}; choose one with `{section}.model`")
    model = by_name[name]
    # vLLM does not report the context of an adapter, which is that of the adapted model.
    served = model.max_model_len or by_name.get(model.parent or "", model).max_model_len
    known = _VERSION_PATHS.get(model.owned_by or "")
    title = known[0] if known else "unknown server"
    for kind, path in [known] if known else _VERSION_PATHS.values():
        try:
            version = await server.get(path, _Version)
        except (Rejected, BrokenReply):
            continue
        if number := version.version or version.build_info:
            served, title = served or version.default_generation_settings.n_ctx, f"{kind} {number}"
            break
    facts = {"root": model.root if model.root != name else None, "base model": model.parent}
    info = EngineInfo(
        model=name,
        revision=settings.revision,
        context=settings.context or served or 0,
        overhead=0,
        engine=title,
        serving={fact: value for fact, value in facts.items() if value},
    )
    wanted, problem = settings.context, ""
    if not info.context:
        problem, remedy = f"does not report the context length of {info.model}", f"give it (`{section}.context`)"
    elif served is not None and wanted is not None and wanted > served:
        problem = f"{info.model} is served with a context of {served} tokens, {wanted} are configured"
        remedy = f"serve it with a longer context or give a shorter one (`{section}.context`)"
    if problem:
        return info, ServerCheck("context", False, problem, "", remedy, is_blocking=True)
    origin = "as the server reports" if wanted is None else "as configured"
    return info, ServerCheck("context", True, f"{info.context} tokens, {origin}")
