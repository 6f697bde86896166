"""The directive `commands`: every command of `lipschitz-rnn` with its options, from the program itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def as_rst(text: str) -> str:
    """Rich's markup and Markdown's back quotes, as reStructuredText."""
    text = re.sub(r"\[/?[a-z ]*\]", "", text)
    return re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text).replace("*", r"\*").replace("|", r"\|")


def all_commands(command: Any, context: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """(full name, command, its context) of a group's commands, and of the groups among them."""
    for each in command.list_commands(context):
        _, found, _ = command.resolve_command(context, [each])
        inner = type(context)(found, parent=context, info_name=each)
        yield f"{name} {each}", found, inner
        if hasattr(found, "list_commands"):
            yield from all_commands(found, inner, f"{name} {each}")


def option_rows(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        is_option = parameter.param_type_name == "option"
        flags = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.name.upper()
        value = f" {parameter.metavar}" if is_option and parameter.metavar else ""
        text = as_rst(" ".join((parameter.help or "").split()))
        default = parameter.default
        if getattr(parameter, "show_default", False) and default not in (None, False, (), []) and not callable(default):
            text += f" Default: ``{default}``."
        yield f"``{flags}{value}``", text


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        import typer.main

        from lipschitz_rnn.cli import app

        group = typer.main.get_group(app)
        context = group.make_context("lipschitz-rnn", [], resilient_parsing=True)
        sections: list[nodes.Node] = []
        for name, command, inner in all_commands(group, context, "lipschitz-rnn"):
            section = nodes.section(ids=[nodes.make_id(name)])
            section += nodes.title(name, name)
            lines = [
                *as_rst(inspect.cleandoc(command.help or "")).splitlines(),
                "",
                ".. list-table::",
                "   :widths: 35 65",
                "",
            ]
            for flags, text in option_rows(command, inner):
                lines += [f"   * - {flags}", f"     - {text}"]
            self.state.nested_parse(StringList(lines, source=name), 0, section)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
