"""Settings of a configuration that are not the default."""

from __future__ import annotations

from typing import Any

from touche_llm.config.configuration import Config, flatten
from touche_llm.config.files import load_config
from touche_llm.retrieval.first_stages import RetrieverConfig
from touche_llm.tasks import DEFAULT_TASK

# Settings that other defaults depend on, with their own defaults; None for those without one.
_OWN_DEFAULTS = {
    "task": DEFAULT_TASK,
    "dataset": None,
    "topics": None,
    "corpus": None,
    "objective": Config.model_fields["objective"].default,
    "retriever.name": RetrieverConfig().name,
}


def list_changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that are not the default, with their values by dotted name.

    Defaults are those of the task, objective, retriever, corpus and dataset. Topics and corpus have
    no default, nor has an index without a corpus.
    """
    own_defaults = dict(_OWN_DEFAULTS)
    if config.dataset is not None:
        # The topics are those of the dataset.
        del own_defaults["topics"]
    elif config.corpus is None:
        own_defaults["index"] = None

    values = flatten(config.model_dump(mode="json"))
    # With these settings given, all others get the defaults that depend on them.
    given = {name: values.get(name) for name in own_defaults}
    default_values = flatten(load_config(None, given).model_dump(mode="json"))
    default_values.update(own_defaults)
    return {name: value for name, value in values.items() if value != default_values.get(name)}
