"""Declaration and registry of the kinds of task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from touche_llm.corpus.store import DocumentStore
from touche_llm.data.records import Judgment, Topic
from touche_llm.errors import UsageError, Warn
from touche_llm.extensions import Registry
from touche_llm.judging.judgments import judge as judge_documents
from touche_llm.judging.outcomes import Outcomes
from touche_llm.judging.requests import Requester, Stage, TopicDocument
from touche_llm.judging.result import Judgments
from touche_llm.judging.stance_labels import StanceSettings
from touche_llm.kinds.search_space import SearchSpace
from touche_llm.prompts.prompt import Prompt
from touche_llm.retrieval.candidates import Candidates
from touche_llm.retrieval.corpus import Documents
from touche_llm.settings.section import NamedSection, Section, read_settings
from touche_llm.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingInputs:
    """Inputs of a kind that judges the candidates of a run.

    Attributes:
        candidates: Candidates of the run; its topics have their objects, if they are known.
        topics: Topics to judge candidates of: all, but for those whose objects are unknown.
        documents: Texts of the candidates.
        prompts: Prompts by purpose.
        requester: Client of the model, and the builder of its requests.
        stage: Shows the progress of requests.
        settings: Section that the kind declares in `judging_section`; None if it declares none.
        stance: Settings of the stance prompt; None to leave it out.
        warn: Receives notices.
    """

    candidates: Candidates
    topics: Sequence[Topic]
    documents: Documents
    prompts: Mapping[str, Prompt]
    requester: Requester
    stage: Stage
    settings: Any
    stance: StanceSettings | None
    warn: Warn

    @property
    def task(self) -> Task:
        """Task of the run."""
        return self.candidates.task

    async def judge(
        self,
        work: Sequence[TopicDocument],
        documents: Documents,
        *,
        title: str,
        purpose: str = "judge",
    ) -> Outcomes[Judgment]:
        """Judge documents with the prompt of a purpose.

        Args:
            work: Documents to judge, topic by topic.
            documents: Texts of the documents.
            title: Title of the requests on the display of the progress.
            purpose: Purpose of the prompt: `judge`, or `sentence` for sentences.

        Raises:
            EngineError: The engine failed.
            ReplayMiss: The cache of a replay lacks an answer.
        """
        prompt = self.prompts[purpose]
        question = self.task.questions[purpose]
        with self.stage(title, len(work) * prompt.requests_per_document) as done:
            return await judge_documents(
                [*work],
                documents,
                question,
                prompt,
                self.requester,
                done,
            )


class Kind(ABC):
    """A kind of task: what a run ranks, and how that is found and judged.

    By default it ranks the documents that the first stage retrieves.

    Attributes:
        name: Value of `kind` in a task's `task.yaml`.
        help: What such a task ranks, in a few words.
        reference: Publication or page that describes it.
        noun: Name of what a run ranks, in messages.
        candidate_noun: Name of what the first stage retrieves, in messages.
        makes_documents: Whether `judge` makes the ranked documents of sentences that the first
            stage retrieves; a run's folder then has the sentences and their judgments too.
        search_section: Section with the settings of its search.
        judging_section: Section with the settings of its judging.
        length_setting: Setting with the maximum length of a ranking, which a task limits.
        pool_setting: Setting with the number of candidates that the first stage retrieves per
            topic.
        dry_run_note: What a dry run cannot know of the number of requests.
        nothing_made: Why no document was made, and what helps.
        order: Place in lists; lower ones come first.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    reference: ClassVar[str]
    noun: ClassVar[str] = "documents"
    candidate_noun: ClassVar[str] = "documents"
    makes_documents: ClassVar[bool] = False
    search_section: ClassVar[NamedSection | None] = None
    judging_section: ClassVar[NamedSection | None] = None
    length_setting: ClassVar[str] = "depth"
    pool_setting: ClassVar[str] = "depth"
    dry_run_note: ClassVar[str | None] = None
    nothing_made: ClassVar[str | None] = None
    order: ClassVar[int] = 100

    @abstractmethod
    async def judge(self, inputs: JudgingInputs) -> Judgments:
        """Judge the candidates of a run.

        Raises:
            UsageError: The corpus cannot be judged in this way.
            EngineError: The engine failed.
            ReplayMiss: The cache of a replay lacks an answer.
        """

    def find_task_problem(self, task: Task) -> str | None:
        """Return what a task lacks to be of this kind, beginning with the key; None for nothing."""
        return None

    def open_space(self, store: DocumentStore, settings: Section | None) -> SearchSpace:
        """Return what the first stage searches of a store, and what a run ranks of it.

        Args:
            store: Open store of the corpus.
            settings: Section that the kind declares in `search_section`; None for the defaults.
        """
        return SearchSpace(store)

    def find_id_problem(self, document_id: str) -> str | None:
        """Return why an id is not that of a ranked document; None if it can be."""
        return None

    def list_sentences(self, document_id: str) -> list[str]:
        """Return the ids of the sentences that a ranked document was made of; none by default."""
        return []

    @property
    def before_judging(self) -> str:
        """Name of the documents that are ranked in the order before they are judged."""
        if self.makes_documents:
            return f"{self.noun} before they are judged"
        return "first stage"

    @property
    def sections(self) -> dict[str, type[Section]]:
        """Types of the sections of the configuration that it declares, by name."""
        sections: dict[str, type[Section]] = {}
        for section in (self.search_section, self.judging_section):
            if section is not None:
                sections[section.name] = section.settings
        return sections

    def read_judging_settings(self, given: object) -> Section | None:
        """Return the settings of the judging: the given ones, or the defaults for None.

        Returns:
            Settings of the declared type; None if none is declared.

        Raises:
            UsageError: The settings are of another type or invalid, or none is declared.
        """
        if self.judging_section is not None:
            return read_settings(self.judging_section.settings, given, self.judging_section.name)
        if given is not None:
            raise UsageError(
                f"judging_settings: tasks of the kind {self.name} have no settings of their own; leave them out"
            )
        return None


KINDS: Registry[Kind] = Registry("kind of task")


def register(kind: Kind) -> Kind:
    """Add a kind to those that a task can name, and return it.

    Raises:
        ExtensionError: Another one has its name, or the configuration is made already.
    """
    return KINDS.register(kind)
