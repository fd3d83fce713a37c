"""Files of a template: the template and what it extends, includes and imports, checked and compiled before use."""

from __future__ import annotations

import traceback
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

from touche_llm.errors import PromptError
from touche_llm.prompts.template_text import HEADER, read_text, resolve_reference


class _TemplateLoader(BaseLoader):
    """Loader of the checked files alone."""

    def __init__(self, files: Mapping[str, _File]) -> None:
        self._files = files

    def load(self, environment: Environment, name: str, globals: Any = None) -> Template:
        """Return a compiled file; raise TemplateNotFound if it was not checked."""
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
        """Take the function that returns the text to insert for a value."""
        super().__init__(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=finalize
        )
        # `lipsum` and `random` vary from one rendering to the next, so that no cached answer would
        # match the request.
        del self.globals["lipsum"]
        del self.filters["random"]
        # `_BlockFinalizer` adds this filter to the blocks whose text Jinja does not finalize.
        self.filters[_FINALIZE] = finalize


ROLES = ("system", "user")
_OPENING_BRACKETS = tuple("<＜﹤[［")
_Reference = nodes.Extends | nodes.Include | nodes.Import | nodes.FromImport
# A file may define these outside its blocks; they apply in all blocks.
_DEFINITIONS = (nodes.Import, nodes.FromImport, nodes.Macro)


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """A file of a template.

    Attributes:
        path: Path of the file.
        text: Whole text.
        tree: Syntax tree, without the front matter.
        template: Compiled template.
        references: Nodes that refer to other files.
    """

    path: Path
    text: str
    tree: nodes.Template
    template: Template
    references: tuple[_Reference, ...]

    @property
    def parent(self) -> str | None:
        """Name of the file that this one extends; None if it extends none."""
        for node in self.references:
            if isinstance(node, nodes.Extends):
                return _get_name(node)
        return None

    @property
    def blocks(self) -> set[str]:
        """Names of all blocks of the file."""
        return {block.name for block in self.tree.find_all(nodes.Block)}

    @property
    def assigned(self) -> set[str]:
        """All names that the file assigns, defines or imports anywhere."""
        names: set[str] = set()
        for name in self.tree.find_all(nodes.Name):
            is_assigned = name.ctx != "load"
            if is_assigned:
                names.add(name.name)
        for macro in self.tree.find_all(nodes.Macro):
            names.add(macro.name)
        for module in self.tree.find_all(nodes.Import):
            names.add(module.target)
        for macros in self.tree.find_all(nodes.FromImport):
            names.update(_list_imported_names(macros))
        return names


class TemplateFiles:
    """A compiled template with the files of its folder that it references; rendering reads no file.

    Attributes:
        text: Text of the template.
        texts: Texts of the referenced files, by name.
        used: Variables that any of the files uses.
    """

    def __init__(
        self, path: Path, text: str, variables: Collection[str], finalize: Callable[[Any], str]
    ) -> None:
        """Read and check the files that the template references.

        Args:
            path: File of the template.
            text: Its text.
            variables: Variables that the template may use.
            finalize: Returns the text that an expression inserts, for its value.

        Raises:
            PromptError: A file is invalid; names the file and the line.
        """
        self._path = path
        self._environment = _Sandbox(finalize)

        # Fills `_files` with the template and all files that it references.
        self._files: dict[str, _File] = {}
        self._load(path.name, path, text, open_files=(path.name,))
        self._chain = self._list_chain()

        self._check_roles()
        self._check_unsent_text()
        for file in self._files.values():
            _check_chat_control(file)

        self.text = text
        self.texts = {name: file.text for name, file in self._files.items() if name != path.name}
        self.used = self._find_used_variables(set(variables))
        # From now on Jinja follows references to the checked files only.
        self._environment.loader = _TemplateLoader(self._files)

    def render(self, role: str, variables: Mapping[str, Any]) -> str:
        """Render the block `system` or `user`, as Jinja does for a template that extends others.

        Errors of the template are raised as Jinja raises them.
        """
        template, *bases = self._chain
        context = template.template.new_context(dict(variables))
        # Jinja keeps a list of the blocks with one name. It renders the first, that of the template
        # itself; `super()` in it inserts the second, that of the file that the template extends.
        for base in bases:
            for name, render_block in base.template.blocks.items():
                context.blocks.setdefault(name, []).append(render_block)

        render_role = context.blocks[role][0]
        rendered_pieces = render_role(context)
        return self._environment.concat(rendered_pieces)

    def find_place(self, error: BaseException) -> str:
        """Return the place where a rendering error arose: `line 7: `, `macros.jinja:7: ` or an empty text.

        It is the innermost line of a template file among the calls that led to the error.
        """
        file_by_path = {str(file.path): file for file in self._files.values()}
        outermost_first = list(traceback.walk_tb(error.__traceback__))
        for frame, code_line in reversed(outermost_first):
            file = file_by_path.get(frame.f_code.co_filename)
            if file is None:
                # Code of Jinja, or of this package.
                continue
            line = file.template.get_corresponding_lineno(code_line)
            is_template = file.path == self._path
            return f"line {line}: " if is_template else f"{file.path}:{line}: "
        return ""

    def _load(self, name: str, path: Path, text: str, open_files: tuple[str, ...]) -> None:
        """Parse and compile a file, and the files that it references, each file once.

        Args:
            name: Name of the file in the folder of the template.
            path: Its path.
            text: Its text.
            open_files: Names of the files from the template to this one, each of which references
                the next; a reference back to one of them is a cycle.

        Raises:
            PromptError: A file is invalid, or includes itself.
        """
        file = self._parse(name, path, text)
        self._files[name] = file

        for node in file.references:
            location = f"{path}:{node.lineno}"
            reference = _get_name(node)
            if reference in open_files:
                raise PromptError(f"{location}: {reference} would include itself")
            if reference in self._files:
                continue

            target = resolve_reference(self._path.parent, reference, location)
            self._load(reference, target, read_text(target), (*open_files, reference))

    def _parse(self, name: str, path: Path, text: str) -> _File:
        """Parse and compile a file.

        Raises:
            PromptError: The file is no template, or the name of a referenced file is no text.
        """
        environment = self._environment
        try:
            tree = environment.parse(_blank_front_matter(text), name, str(path))
            references = _list_references(tree, path)
            self._rewrite_tree(tree)
            code = environment.compile(tree, name, str(path))
        except TemplateSyntaxError as error:
            raise PromptError(f"{path}:{error.lineno}: {error.message}") from error

        # Each rendering copies the global variables, and a copy of Jinja's own mapping is far slower
        # than one of a dictionary.
        variables = dict(environment.globals)
        template = Template.from_code(environment, code, variables)
        return _File(path, text, tree, template, references)

    def _rewrite_tree(self, tree: nodes.Template) -> None:
        """Change the syntax tree of a file before it is compiled.

        Texts of filters and calls are finalized, and macros and imports of the file work in its
        blocks too.
        """
        _BlockFinalizer().visit(tree)
        # The copies are made last, so that the copied macros are finalized as well.
        _copy_definitions(tree)
        # Added nodes need the environment to be compiled.
        tree.set_environment(self._environment)

    def _list_chain(self) -> list[_File]:
        """Return the template, the file that it extends, the file that this one extends, and so on."""
        file = self._files[self._path.name]
        chain = [file]
        while file.parent is not None:
            file = self._files[file.parent]
            chain.append(file)
        return chain

    def _check_roles(self) -> None:
        """Raise PromptError unless a block of the template, or of what it extends, has each role."""
        blocks: set[str] = set()
        for file in self._chain:
            blocks |= file.blocks

        missing = sorted(set(ROLES) - blocks)
        if missing:
            raise PromptError(
                f"{self._path}: no block named {' nor '.join(missing)}; a prompt needs `system` and `user`"
            )

    def _check_unsent_text(self) -> None:
        """Raise PromptError if a file has text that would not be sent, outside the blocks that are."""
        sent_blocks = set(ROLES)
        for file in reversed(self._chain):
            for node in file.tree.body:
                if not _is_sent(node, sent_blocks):
                    raise PromptError(
                        f"{file.path}:{node.lineno}: only the blocks `system` and `user` are sent; move this into one"
                    )
            # A template may override blocks that are nested in the blocks of its base.
            sent_blocks |= file.blocks

    def _find_used_variables(self, variables: set[str]) -> set[str]:
        """Return the variables that the files use.

        Args:
            variables: Variables that the template may use.

        Raises:
            PromptError: A file uses an undefined name.
        """
        used: set[str] = set()
        for file in self._files.values():
            names = meta.find_undeclared_variables(file.tree)
            defined = variables
            if file not in self._chain:
                # An included file also sees the names that the files around it assign.
                defined = variables | self._list_assigned_names()

            undefined = names - defined
            if undefined:
                known = ", ".join(sorted(variables))
                raise PromptError(
                    f"{file.path}: undefined variable {min(undefined)!r}; the template may use {known}"
                )
            used |= names & variables
        return used

    def _list_assigned_names(self) -> set[str]:
        """Return the names that any of the files assigns."""
        names: set[str] = set()
        for file in self._files.values():
            names |= file.assigned
        return names


def _blank_front_matter(text: str) -> str:
    """Return a text with empty lines for its front matter, so that lines keep their numbers."""
    header = HEADER.match(text)
    if header is None:
        return text
    empty_lines = "\n" * header.group(0).count("\n")
    return empty_lines + text[header.end() :]


def _list_references(tree: nodes.Template, path: Path) -> tuple[_Reference, ...]:
    """Return the nodes that refer to other files.

    Raises:
        PromptError: The name of a file is an expression.
    """
    references: list[_Reference] = []
    for node in tree.find_all(nodes.Stmt):
        if not isinstance(node, _Reference):
            continue

        name = node.template
        if not isinstance(name, nodes.Const) or not isinstance(name.value, str):
            raise PromptError(
                f"{path}:{node.lineno}: the name of a file must be a text in quotation marks"
            )
        references.append(node)
    return tuple(references)


def _list_imported_names(node: nodes.FromImport) -> list[str]:
    """Return the names under which a node imports macros of another file."""
    names: list[str] = []
    for name in node.names:
        if isinstance(name, str):
            names.append(name)
        else:
            # `macro as alias`.
            _, alias = name
            names.append(alias)
    return names


def _copy_definitions(tree: nodes.Template) -> None:
    """Copy the imports and macros that a file has outside its blocks into each block.

    Only the text of blocks is sent, and in a file that extends another, Jinja runs nothing outside
    the blocks: they could not use these imports and macros.
    """
    definitions = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
    for block in list(tree.find_all(nodes.Block)):
        block.body = [*definitions, *block.body]


def _get_name(node: _Reference) -> str:
    """Return the name of the file that a node refers to."""
    # `_list_references` has checked that it is a text.
    assert isinstance(node.template, nodes.Const)
    return str(node.template.value)


def _is_sent(node: nodes.Node, blocks: Collection[str]) -> bool:
    """Return whether a node of a file is a sent block, or has no text that could be sent.

    Args:
        node: Node outside all blocks, or a block.
        blocks: Names of the blocks that are sent.
    """
    if isinstance(node, nodes.Block):
        return node.name in blocks
    return isinstance(node, (nodes.Extends, *_DEFINITIONS)) or _is_blank(node)


def _is_blank(node: nodes.Node) -> bool:
    """Return whether a node is white space."""
    if not isinstance(node, nodes.Output):
        return False
    return all(
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
