"""The files of a template: itself and what it extends, includes and imports; read, checked and compiled before use."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateSyntaxError, meta, nodes

from touche_llm.errors import PromptError
from touche_llm.prompts.sandbox import Loader, Sandbox

ROLES = ("system", "user")
HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_MOST_BYTES = 2**20
_MOST_FILES = 100
_OPENING = tuple("<＜﹤[［")
_Reference = nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport
# What a file may define beside its blocks; it holds in all of them.
_DEFINITIONS = (nodes.Import, nodes.FromImport, nodes.Macro)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a template. `name` is its path within the folder, `text` all of it, `tree` all but its header."""

    name: str
    path: Path
    text: str
    tree: nodes.Template
    template: Template
    references: tuple[_Reference, ...]

    @property
    def parent(self) -> str | None:
        """The name of the file that it extends."""
        return next((_name(each) for each in self.references if isinstance(each, nodes.Extends)), None)

    @property
    def own_names(self) -> set[str]:
        """All names that it gives something to, in any of its parts; a file that it includes sees those."""
        names = {each.name for each in self.tree.find_all(nodes.Name) if each.ctx != "load"}
        for each in self.tree.find_all((nodes.Import, nodes.FromImport)):
            if isinstance(each, nodes.Import):
                names.add(each.target)
            elif isinstance(each, nodes.FromImport):
                names |= {name if isinstance(name, str) else name[1] for name in each.names}
        return names | {each.name for each in self.tree.find_all(nodes.Macro)}


class TemplateFiles:
    """A template with all that it pulls in from its own folder, compiled; nothing is read when it is rendered.

    Attributes:
        text: the template's own.
        texts: of the files that are pulled in, by their names; the template's own is not among them.
        used: which of the variables are used in any of the files.
    """

    def __init__(self, path: Path, text: str, variables: Collection[str], finalize: Callable[[Any], str]) -> None:
        """Read what the template `path` with this text pulls in, and check all of it.

        Args:
            path: of the template; the folder in which it lies is the only one from which it may pull in something.
            text: the whole file.
            variables: what the files may use.
            finalize: what an expression inserts passes here.

        Raises:
            PromptError: a file that is not there, too large, not UTF-8 or not in the folder; one that pulls in itself,
                or another under a name that is computed; syntax; blocks that would not be sent; a place where text
                from outside could act as chat control; a variable that is not given. Names file and line.
        """
        self._path, self._folder = path, path.parent
        self._files: dict[str, _File] = {}
        self._variables = frozenset(variables)
        # The text of a block that looks at no variable: most systems' messages.
        self._constant: dict[str, str] = {}
        self._environment = Sandbox(finalize)
        self._load(path.name, path, text, ())
        self._chain = self._extended()
        self._check_blocks()
        for file in self._files.values():
            _check_seams(file)
        self.used: set[str] = set()
        self._seen: set[tuple[str, frozenset[str]]] = set()
        self._check_names(path.name, frozenset(variables), frozenset(variables))
        self.text = text
        self.texts = {name: file.text for name, file in self._files.items() if name != path.name}
        self._environment.loader = Loader({name: file.template for name, file in self._files.items()})

    def render(self, role: str, variables: Mapping[str, Any]) -> str:
        """The text of the block `role`. What the template does wrong when it runs is raised as Jinja raises it."""
        if role in self._constant:
            return self._constant[role]
        self._environment.looked_up.clear()
        context = self._chain[0].template.new_context(dict(variables))
        for file in self._chain[1:]:
            for name, block in file.template.blocks.items():
                context.blocks.setdefault(name, []).append(block)
        text = self._environment.concat(context.blocks[role][0](context))
        if self._environment.looked_up.isdisjoint(self._variables):
            self._constant[role] = text
        return text

    def place(self, error: BaseException) -> str:
        """Where in the files an error of rendering arose: `line 7`, `macros.jinja:7`, or nothing."""
        by_path = {str(file.path): file for file in self._files.values()}
        found, trace = "", error.__traceback__
        while trace is not None:
            file = by_path.get(trace.tb_frame.f_code.co_filename)
            if file is not None:
                line = file.template.get_corresponding_lineno(trace.tb_lineno)
                found = f"line {line}: " if file.path == self._path else f"{file.path}:{line}: "
            trace = trace.tb_next
        return found

    def _load(self, name: str, path: Path, text: str, inside: tuple[str, ...]) -> None:
        """Parse and compile a file, and what it pulls in; `inside` are the files that pull in this one."""
        file = self._files[name] = self._parsed(name, path, text)
        if len(self._files) > _MOST_FILES:
            raise PromptError(f"{self._path}: pulls in more than {_MOST_FILES} files")
        for node in file.references:
            wanted, where = _name(node), f"{path}:{node.lineno}"
            if wanted in (*inside, name):
                raise PromptError(f"{where}: {wanted} would pull in itself")
            if wanted not in self._files:
                there = pulled_in(self._folder, wanted, where)
                self._load(wanted, there, read_text(there), (*inside, name))
            if not isinstance(node, nodes.Extends):
                _check_inserted(self._files[wanted], isinstance(node, nodes.Include), where)

    def _parsed(self, name: str, path: Path, text: str) -> _File:
        header = HEADER.match(text)
        # Line numbers in messages are those of the file: the front matter is kept as empty lines.
        body = text if header is None else "\n" * header.group(0).count("\n") + text[header.end() :]
        environment = self._environment
        try:
            tree = environment.parse(body, name, str(path))
            references = tuple(each for each in tree.find_all(nodes.Stmt) if isinstance(each, _Reference))
            for each in references:
                if not isinstance(each.template, nodes.Const) or not isinstance(each.template.value, str):
                    raise PromptError(f"{path}:{each.lineno}: the name of a file must be a text in quotation marks")
            # Jinja would let them hold for what is outside of the blocks only, which is not sent.
            definitions = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
            for block in list(tree.find_all(nodes.Block)):
                block.body[:0] = definitions
            code = environment.compile(tree, name, str(path))
        except TemplateSyntaxError as error:
            raise PromptError(f"{path}:{error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError) as error:
            raise PromptError(f"{path}: nested too deeply: {error}") from error
        # A plain dictionary: each rendering copies it, and what Jinja would give is far slower to walk through.
        template = Template.from_code(environment, code, dict(environment.globals))
        return _File(name, path, text, tree, template, references)

    def _extended(self) -> list[_File]:
        """The template, what it extends, what that extends, and so on."""
        chain = [self._files[self._path.name]]
        while (parent := chain[-1].parent) is not None:
            chain.append(self._files[parent])
        return chain

    def _check_blocks(self) -> None:
        """Raise PromptError unless there is a block for each role, and nothing beside the blocks that are sent."""
        known = {block.name for file in self._chain for block in file.tree.find_all(nodes.Block) if not block.required}
        missing = set(ROLES) - known
        if missing:
            raise PromptError(
                f"{self._path}: no block named {' nor '.join(sorted(missing))}; a prompt has `system` and `user`"
            )
        sent = set(ROLES)
        for file in reversed(self._chain):
            extends = [each for each in file.references if isinstance(each, nodes.Extends)]
            if len(extends) > 1 or any(each not in file.tree.body for each in extends):
                raise PromptError(f"{file.path}:{extends[-1].lineno}: a file extends one other, always the same")
            for node in file.tree.body:
                # A base's blocks within blocks may be given anew.
                allowed = isinstance(node, (nodes.Extends, *_DEFINITIONS))
                allowed = allowed or (isinstance(node, nodes.Block) and node.name in sent)
                if not allowed and not _blank(node):
                    raise PromptError(
                        f"{file.path}:{node.lineno}: only the blocks `system` and `user` are sent; move this into one"
                    )
            sent |= {block.name for block in file.tree.find_all(nodes.Block)}

    def _check_names(self, name: str, variables: frozenset[str], known: frozenset[str]) -> None:
        """Raise PromptError where a file, or one that it pulls in, uses a name that it is not given."""
        if (name, known) in self._seen:
            return
        self._seen.add((name, known))
        file = self._files[name]
        asked = meta.find_undeclared_variables(file.tree)
        for unknown in sorted(asked - known):
            if unknown in variables:
                why = "a file without context is not given it; give it to the macro, or import the file `with context`"
            else:
                why = f"the template may use {', '.join(sorted(variables))}"
            raise PromptError(f"{file.path}: undefined variable {unknown!r}; {why}")
        self.used |= asked & variables
        for node in file.references:
            given = known
            if not isinstance(node, nodes.Extends):
                given = known | file.own_names if node.with_context else frozenset()
            self._check_names(_name(node), variables, given)


def read_text(path: Path) -> str:
    """The text of a file of a template, bounded; line ends as in Unix, without a byte order mark.

    Raises:
        PromptError: it is too large, not UTF-8, or something else than a file, such as a pipe.
        OSError: it cannot be read.
    """
    mode = path.stat().st_mode
    # Opening a pipe waits for somebody who writes; a folder has an error of its own.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise PromptError(f"{path}: not a regular file")
    with path.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise PromptError(f"{path}: larger than {_MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8: {error}") from error


def pulled_in(folder: Path, name: str, where: str) -> Path:
    """The path of a file of a template's folder; raises PromptError, with the place `where`, for anything else."""
    if not name.isprintable() or "\\" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise PromptError(f'{where}: {name!r:.80}: must be the path of a file within {folder}, as "base.jinja"')
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        there = path.is_file()
    # A loop of links, a name that is too long.
    except (OSError, RuntimeError) as error:
        raise PromptError(f"{where}: {path}: cannot read it: {error}") from error
    if not inside:
        raise PromptError(f"{where}: {path} is a link that leads out of {folder}; put a copy there")
    if not there:
        raise PromptError(f"{where}: {path}: no such file; a template takes files from its own folder only")
    return path


def _name(node: _Reference) -> str:
    assert isinstance(node.template, nodes.Const)
    return str(node.template.value)


def _blank(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Output) and all(
        isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes
    )


def _check_inserted(file: _File, included: bool, where: str) -> None:
    """Raise PromptError where a file is not one to include or to import."""
    if HEADER.match(file.text):
        raise PromptError(f"{where}: {file.path} has front matter: it is a prompt of its own, or take that away")
    for node in file.tree.find_all((nodes.Extends, nodes.Block)):
        raise PromptError(
            f"{file.path}:{node.lineno}: only a template and what it extends have blocks; this is pulled in at {where}"
        )
    outside = (node for node in file.tree.body if isinstance(node, nodes.Output) and not _blank(node))
    for node in () if included else outside:
        raise PromptError(f"{file.path}:{node.lineno}: of a file that is imported ({where}) only macros are used")


def _check_seams(file: _File) -> None:
    """Raise PromptError where text from outside could act as chat control whatever is done to it."""
    for data in file.tree.find_all(nodes.TemplateData):
        if data.data.endswith(_OPENING):
            line = data.lineno + data.data.count("\n")
            raise PromptError(
                f"{file.path}:{line}: {data.data[-1]!r}: an opening bracket just before what is inserted could make a "
                "control token of it; put a space or another character between them"
            )
    for block in file.tree.find_all(nodes.FilterBlock):
        raise PromptError(
            f"{file.path}:{block.lineno}: a filter over a whole section could undo what makes text sanitize_document"
        )
