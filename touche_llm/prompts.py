"""Prompt templates: load, check, render. Text that a template inserts is data and can never act as chat control."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from touche_llm.errors import PromptError
from touche_llm.llm.request import Message, Origin

_INSTALLED = Path(__file__).parent / "_prompts"
_CHECKOUT = Path(__file__).parent.parent / "prompts"
_HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_HASH_DIGITS = 12
_ROLES = ("system", "user")

# A bracket that could begin a control token of some chat format, in ASCII or in the full-width forms that a
# normalising tokeniser folds into ASCII: `<|im_end|>`, `</s>`, `<start_of_turn>`, `<<SYS>>`, `<｜User｜>`, `[INST]`,
# `[/INST]`, `[gMASK]`, `[|user|]`, `[control_8]`, `]~b]`. Also one at the end of a text, since the template goes on.
_CONTROL = re.compile(r"[<＜﹤](?=\S|$)|[\[［](?=[^\s\d]|$)|[\]］](?=[~～])")
_OPENING = tuple("<＜﹤[［")


class PromptHeader(BaseModel):
    """The YAML front matter of a template."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = Field(ge=1)
    purpose: str
    answer: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template with its header. `name` is `task/name`; `hash` is over the file's text."""

    name: str
    path: Path
    header: PromptHeader
    hash: str
    template: Template

    def render(self, **variables: Any) -> tuple[Message, ...]:
        """The system and the user message.

        Raises:
            PromptError: an undefined variable, or a template that fails or does what the sandbox forbids; names the
                template and the variable.
        """
        messages = []
        for role in _ROLES:
            try:
                context = self.template.new_context(variables)
                text = "".join(self.template.blocks[role](context))
            except UndefinedError as error:
                raise PromptError(
                    f"{self.path}: block {role}: {error.message}; the template may use {_names(variables)}"
                ) from error
            # A template is a program of its author: whatever it raises is about the template.
            except Exception as error:
                raise PromptError(f"{self.path}: block {role}: {type(error).__name__}: {error}") from error
            messages.append(Message(role, text.strip("\n")))
        return tuple(messages)

    def origin(self, topic_id: str, document_id: str | None) -> Origin:
        """The origin of a request made from this prompt."""
        return Origin(self.name, self.header.version, self.hash, topic_id, document_id)

    @property
    def label(self) -> str:
        """Name, version and hash in one word, as judgments carry it."""
        return f"{self.name}@{self.header.version}-{self.hash}"


def neutralise(text: str) -> str:
    """The text with nothing in it that a tokeniser could take for chat control; applying it again changes nothing.

    Control and format characters go (line feeds and tabs stay), since some tokenisers drop them and join what they
    parted. A space parts each bracket that could begin a control token from what follows.
    """
    # What is printable as a whole has none of them; looking at each character takes thirty times as long.
    if not text.replace("\n", " ").replace("\t", " ").isprintable():
        text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    return _CONTROL.sub(r"\g<0> ", text)


def prompts_folder() -> Path:
    """The project's own templates: in the installed package, or at the top of a checkout."""
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


def load_prompt(task: str, name: str, answer: str, variables: Mapping[str, bool]) -> Prompt:
    """The prompt `name` of a task, or the template file that `name` is a path to (it ends in `.jinja`).

    Args:
        task: whose prompts.
        name: a name, or a path.
        answer: the answer model that the caller reads; the front matter must name the same.
        variables: what the template may use, and whether it must.

    Raises:
        PromptError: no such template, or its front matter, syntax or blocks are not as they should be.
    """
    if name.endswith(".jinja"):
        path = Path(name)
    elif not name.isidentifier():
        raise PromptError(f"{name}: neither the name of a prompt nor the path of a .jinja file")
    else:
        path = prompts_folder() / task / f"{name}.jinja"
    try:
        source = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        known = sorted(each.stem for each in (prompts_folder() / task).glob("*.jinja"))
        raise PromptError(f"{path}: cannot read the prompt: {error.strerror}; {task} has {', '.join(known)}") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8: {error}") from error
    found = _HEADER.match(source)
    if found is None:
        raise PromptError(f"{path}: must begin with front matter between two lines of `---`")
    header = _header(path, found.group(1))
    if header.answer != answer:
        raise PromptError(f"{path}: front matter: asks for the answer {header.answer!r}, but {answer!r} is read here")
    # Line numbers in messages are those of the file: the front matter is kept as empty lines.
    body = "\n" * found.group(0).count("\n") + source[found.end() :]
    environment = _environment()
    try:
        tree = environment.parse(body)
        template = environment.from_string(body)
    except TemplateSyntaxError as error:
        raise PromptError(f"{path}:{error.lineno}: {error.message}") from error
    missing = set(_ROLES) - set(template.blocks)
    if missing:
        raise PromptError(f"{path}: no block named {' nor '.join(sorted(missing))}; a prompt has `system` and `user`")
    for node in tree.body:
        blank = isinstance(node, nodes.Output) and all(
            isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes
        )
        if not blank and not (isinstance(node, nodes.Block) and node.name in _ROLES):
            raise PromptError(f"{path}:{node.lineno}: only the blocks `system` and `user` are sent; move this into one")
    for data in tree.find_all(nodes.TemplateData):
        if data.data.endswith(_OPENING):
            line = data.lineno + data.data.count("\n")
            raise PromptError(
                f"{path}:{line}: {data.data[-1]!r}: an opening bracket just before what is inserted could make a "
                "control token of it; put a space or another character between them"
            )
    for block in tree.find_all(nodes.FilterBlock):
        raise PromptError(f"{path}:{block.lineno}: a filter over a whole section could undo what makes text harmless")
    used = meta.find_undeclared_variables(tree)
    for unknown in sorted(used - set(variables)):
        raise PromptError(
            f"{path}: undefined variable {unknown!r}; the template may use {', '.join(sorted(variables))}"
        )
    for unused in sorted(name for name, needed in variables.items() if needed and name not in used):
        raise PromptError(f"{path}: the variable {unused!r} is not used, so its text would never be sent")
    digest = hashlib.sha256(source.encode()).hexdigest()[:_HASH_DIGITS]
    return Prompt(f"{task}/{path.stem}", path, header, digest, template)


def _header(path: Path, text: str) -> PromptHeader:
    try:
        return PromptHeader.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PromptError(f"{path}: front matter: {where}: {first['msg']}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise PromptError(f"{path}: front matter is not YAML: {' '.join(str(error).split())}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Everything that an expression inserts passes here; what the template itself says does not.
        finalize=lambda value: neutralise(str(value)),
    )


def _names(variables: dict[str, Any]) -> str:
    return ", ".join(sorted(variables))
