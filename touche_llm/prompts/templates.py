"""Files of a template: the template and what it extends, includes and imports, checked and compiled before use."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    Environment,
    StrictUndefined,
    Template,
    TemplateNotFound,
    TemplateSyntaxError,
    meta,
    nodes,
)
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from touche_llm.data.files import read_bounded
from touche_llm.errors import PromptError


class _TemplateLoader(BaseLoader):
    """Loader of the checked files alone."""

    def __init__(self, files: Mapping[str, _File]) -> None:
        self._files = files

    def load(self, environment: Environment, name: str, globals: Any = None) -> Template:
        if name not in self._files:
            raise TemplateNotFound(name)
        return self._files[name].template


# Name of the filter that finalizes the text of a block.
_FINALIZE = "finalize"


class _BlockFinalizer(NodeTransformer):
    """Visitor that finalizes the text of blocks that Jinja writes as it is.

    A filter may put a control token together (`replace("< ", "<")`), and a call may be one of a
    method (`"{}".format(document)`).
    """

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:
        """Add a filter after those of the block."""
        self.generic_visit(node)
        node.filter = _make_finalizer(node.filter)
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.FilterBlock:
        """Filter the text of the block."""
        self.generic_visit(node)
        return nodes.FilterBlock([node], _make_finalizer(None), lineno=node.lineno)


def _make_finalizer(value: nodes.Filter | None) -> nodes.Filter:
    """Return a filter of a value, or of the text of a block if there is none."""
    return nodes.Filter(value, _FINALIZE, [], [], None, None)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment that makes unsafe attributes unreachable and undefined variables errors.

    It applies `finalize` to the value of each expression, the text of macros and of `super()`
    included, and to the text of each `{% filter %}` and `{% call %}` block.
    """

    def __init__(self, finalize: Callable[[Any], str]) -> None:
        super().__init__(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize
        )
        # Both give another text each time, so that no cached answer would match the request.
        del self.globals["lipsum"], self.filters["random"]
        self.filters[_FINALIZE] = finalize


ROLES = ("system", "user")
HEADER = re.compile(r"---\n(.*?)\n---\n", re.DOTALL)
_MAX_BYTES = 2**20
_OPENING_BRACKETS = tuple("<＜﹤[［")
_Reference = nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport
# A file may define these outside its blocks; they apply in all blocks.
_DEFINITIONS = (nodes.Import, nodes.FromImport, nodes.Macro)


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """A file of a template: its whole text, and its tree without the front matter."""

    path: Path
    text: str
    tree: nodes.Template
    template: Template
    references: tuple[_Reference, ...]

    @property
    def parent(self) -> str | None:
        """The name of the file that this one extends."""
        return next(
            (_get_name(node) for node in self.references if isinstance(node, nodes.Extends)), None
        )

    @property
    def assigned(self) -> set[str]:
        """All names that the file assigns anywhere."""
        names = {node.name for node in self.tree.find_all(nodes.Name) if node.ctx != "load"}
        names |= {node.name for node in self.tree.find_all(nodes.Macro)}
        names |= {node.target for node in self.tree.find_all(nodes.Import)}
        imported = (name for node in self.tree.find_all(nodes.FromImport) for name in node.names)
        return names | {name if isinstance(name, str) else name[1] for name in imported}


class TemplateFiles:
    """A compiled template with the files of its folder that it references; rendering reads no file.

    `texts` are those of the referenced files by name; `used` are the variables that any of the
    files uses.
    """

    def __init__(
        self, path: Path, text: str, variables: Collection[str], finalize: Callable[[Any], str]
    ) -> None:
        """Read the files that the template references.

        Raise PromptError with file and line if one is invalid.
        """
        self._path = path
        self._files: dict[str, _File] = {}
        self._environment = _Sandbox(finalize)
        self._load(path.name, path, text, ())
        # The template, the file that it extends, the file that this one extends, and so on.
        self._chain = [self._files[path.name]]
        while (parent := self._chain[-1].parent) is not None:
            self._chain.append(self._files[parent])
        self._check_blocks()
        for file in self._files.values():
            _check_chat_control(file)
        self.used = self._check_names(set(variables))
        self.text = text
        self.texts = {name: file.text for name, file in self._files.items() if name != path.name}
        self._environment.loader = _TemplateLoader(self._files)

    def render(self, role: str, variables: Mapping[str, Any]) -> str:
        """Render the block `role`; errors of the template are raised as Jinja raises them."""
        context = self._chain[0].template.new_context(dict(variables))
        for file in self._chain[1:]:
            for name, block in file.template.blocks.items():
                context.blocks.setdefault(name, []).append(block)
        return self._environment.concat(context.blocks[role][0](context))

    def place(self, error: BaseException) -> str:
        """Return the place where a rendering error arose: `line 7: `, `macros.jinja:7: ` or an empty text."""
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
        """Parse and compile a file and its references.

        `inside` names the files that reference this one.
        """
        file = self._files[name] = self._parse(name, path, text)
        for node in file.references:
            wanted, where = _get_name(node), f"{path}:{node.lineno}"
            if wanted in (*inside, name):
                raise PromptError(f"{where}: {wanted} would include itself")
            if wanted not in self._files:
                target = resolve_reference(self._path.parent, wanted, where)
                self._load(wanted, target, read_text(target), (*inside, name))

    def _parse(self, name: str, path: Path, text: str) -> _File:
        header = HEADER.match(text)
        # The front matter is kept as empty lines, so that line numbers in messages are those of the
        # file.
        body = text if header is None else "\n" * header.group(0).count("\n") + text[header.end() :]
        environment = self._environment
        try:
            tree = environment.parse(body, name, str(path))
            _BlockFinalizer().visit(tree)
            tree.set_environment(environment)
            references = tuple(
                node for node in tree.find_all(nodes.Stmt) if isinstance(node, _Reference)
            )
            for node in references:
                if not isinstance(node.template, nodes.Const) or not isinstance(
                    node.template.value, str
                ):
                    raise PromptError(
                        f"{path}:{node.lineno}: the name of a file must be a text in quotation marks"
                    )
            # In Jinja, definitions apply only outside the blocks, which is not sent.
            definitions = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
            for block in list(tree.find_all(nodes.Block)):
                block.body[:0] = definitions
            code = environment.compile(tree, name, str(path))
        except TemplateSyntaxError as error:
            raise PromptError(f"{path}:{error.lineno}: {error.message}") from error
        # A plain dictionary, since each rendering copies it and iterating over Jinja's own mapping
        # is far slower.
        template = Template.from_code(environment, code, dict(environment.globals))
        return _File(path, text, tree, template, references)

    def _check_blocks(self) -> None:
        """Raise PromptError unless each role has a block and no text stands outside the blocks that are sent."""
        known = {block.name for file in self._chain for block in file.tree.find_all(nodes.Block)}
        if missing := set(ROLES) - known:
            raise PromptError(
                f"{self._path}: no block named {' nor '.join(sorted(missing))}; a prompt needs `system` and `user`"
            )
        sent = set(ROLES)
        for file in reversed(self._chain):
            for node in file.tree.body:
                # A template may override blocks that are nested in the blocks of its base.
                allowed = isinstance(node, (nodes.Extends, *_DEFINITIONS))
                allowed = allowed or (isinstance(node, nodes.Block) and node.name in sent)
                if not allowed and not _is_blank(node):
                    raise PromptError(
                        f"{file.path}:{node.lineno}: only the blocks `system` and `user` are sent; move this into one"
                    )
            sent |= {block.name for block in file.tree.find_all(nodes.Block)}

    def _check_names(self, variables: set[str]) -> set[str]:
        """Return the variables that the files use.

        Raise PromptError if one uses an undefined name.
        """
        used: set[str] = set()
        # Included files see what the others assign.
        assigned = set[str]().union(*(file.assigned for file in self._files.values()))
        for file in self._files.values():
            names = meta.find_undeclared_variables(file.tree)
            if unknown := sorted(names - variables - (set() if file in self._chain else assigned)):
                known = ", ".join(sorted(variables))
                raise PromptError(
                    f"{file.path}: undefined variable {unknown[0]!r}; the template may use {known}"
                )
            used |= names & variables
        return used


def read_text(path: Path) -> str:
    """Read a template file of bounded size, with Unix line ends and without a byte order mark."""
    try:
        return (
            read_bounded(path, _MAX_BYTES, PromptError)
            .decode("utf-8-sig")
            .replace("\r\n", "\n")
            .replace("\r", "\n")
        )
    except UnicodeDecodeError as error:
        raise PromptError(f"{path}: not UTF-8: {error}") from error


def resolve_reference(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file in a template's folder.

    Raise PromptError, with the place `where`, for any other.
    """
    path = folder / name
    if not name.isprintable() or not path.resolve().is_relative_to(folder.resolve()):
        raise PromptError(
            f'{where}: {name!r:.80}: must be the path of a file within {folder}, as "base.jinja"'
        )
    if not path.is_file():
        raise PromptError(
            f"{where}: {path}: no such file; a template may reference files of its own folder only"
        )
    return path


def _get_name(node: _Reference) -> str:
    assert isinstance(node.template, nodes.Const)
    return str(node.template.value)


def _is_blank(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Output) and all(
        isinstance(part, nodes.TemplateData) and not part.data.strip() for part in node.nodes
    )


def _check_chat_control(file: _File) -> None:
    """Raise PromptError if inserted text could act as chat control despite being sanitized."""
    for data in file.tree.find_all(nodes.TemplateData):
        if data.data.endswith(_OPENING_BRACKETS):
            line = data.lineno + data.data.count("\n")
            raise PromptError(
                f"{file.path}:{line}: {data.data[-1]!r}: an opening bracket just before inserted text could turn it "
                "into a control token; put a space or another character between them"
            )
