"""Which labels are single tokens: the answers of the project's prompts in each form, under the tokenizers of models.

    python -m benchmarks.label_tokens NAME=FILE [NAME=FILE …]

FILE is a `tokenizer.json` (needs tokenizers) or, by its name, a `tekken.json` of Mistral (needs
mistral-common). Each label is tokenized in the answer in which a model writes it. A label is a
single token if one token has all its characters; white space and punctuation may share the token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from touche_llm.data.records import Label, Topic
from touche_llm.errors import DataError, PromptError
from touche_llm.llm.answer_schema import (
    AnswerForm,
    AnswerModel,
    Layout,
    build_schema,
    can_be_letters,
    get_labels,
)
from touche_llm.llm.label_probabilities import overlaps
from touche_llm.prompts.purposes import load, purposes_of
from touche_llm.tasks import TASKS, get_task

# Returns the texts of the tokens of a text.
Tokenize = Callable[[str], list[str]]
_FORMS = (AnswerForm.OBJECT, AnswerForm.ARRAY, AnswerForm.LETTERS)
# Their answers have other fields for each topic or number of documents.
_SKIPPED = ("objects", "queries", "order")
_DOCUMENTS = 10


def read_tokenizer(path: Path) -> Tokenize:
    """Return the tokenizer in a file; raise DataError if it cannot be read."""
    try:
        if path.name.startswith("tekken"):
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer

            tekken = Tekkenizer.from_file(path)
            return lambda text: [
                tekken.id_to_piece(token) for token in tekken.encode(text, bos=False, eos=False)
            ]
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
    except ImportError as error:
        raise DataError(
            f"{path}: needs {error.name}; pip install tokenizers mistral-common"
        ) from error
    except Exception as error:  # depends on the library that reads the file
        raise DataError(f"{path}: cannot be read: {error}") from error

    def tokenize(text: str) -> list[str]:
        spans = tokenizer.encode(text, add_special_tokens=False).offsets
        return [text[first:last] for first, last in spans]

    return tokenize


def list_answers() -> dict[str, type[AnswerModel]]:
    """Return the answers of the project's prompts, each set of labels once, by the name of a prompt that has it."""
    found: dict[tuple[tuple[Label, ...], ...], tuple[str, type[AnswerModel]]] = {}
    for name in TASKS:
        task = get_task(name)
        for purpose in purposes_of(task).values():
            if purpose.name in _SKIPPED:
                continue
            try:
                prompt = load(task, purpose, purpose.name)
            except PromptError:
                continue  # a task need not have a prompt for each purpose
            answer = prompt.answer_for(Topic("", ""), document_count=_DOCUMENTS)
            found.setdefault(tuple(get_labels(answer).values()), (prompt.name, answer))
    return dict(found.values())


def find_split_labels(
    answer: type[AnswerModel], form: AnswerForm, tokenize: Tokenize
) -> list[Label]:
    """Return the labels of an answer that are several tokens in a form."""
    layout = Layout.of_schema(build_schema(answer, form))
    labels = get_labels(answer)
    split: list[Label] = []
    for name, allowed in labels.items():
        for label in allowed:
            text = layout.spell(
                {other: values[0] for other, values in labels.items()} | {name: label}
            )
            first, end = layout.find_values(text)[name]
            inside = (first + text[first:end].startswith('"'), end - text[first:end].endswith('"'))
            at, touching = 0, 0
            for token in tokenize(text):
                touching += overlaps(at, token, [inside])
                at += len(token.encode())
            if touching != 1:
                split.append(label)
    return split


def list_rows(tokenizers: Mapping[str, Tokenize]) -> Iterator[list[str]]:
    """Return a row for each form: its labels, and those that each tokenizer splits."""
    answers = list_answers()
    for form in _FORMS:
        fitting = [
            answer
            for answer in answers.values()
            if form is not AnswerForm.LETTERS or can_be_letters(answer)
        ]
        count = len(
            {
                label
                for answer in fitting
                for labels in get_labels(answer).values()
                for label in labels
            }
        )
        row = [str(form), str(count)]
        for tokenize in tokenizers.values():
            split = dict.fromkeys(
                str(label)
                for answer in fitting
                for label in find_split_labels(answer, form, tokenize)
            )
            row.append(", ".join(split) or "none")
        yield row


def main(arguments: Sequence[str]) -> None:
    """Print the table as Markdown."""
    named = dict(argument.partition("=")[::2] for argument in arguments)
    try:
        tokenizers = {name: read_tokenizer(Path(path)) for name, path in named.items()}
    except DataError as error:
        sys.exit(f"error: {error}")
    rows = [["form", "labels", *(f"split by {name}" for name in named)]]
    rows += [["---"] * len(rows[0]), *list_rows(tokenizers)]
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
