r"""Turn the docstrings of adakern, Markdown with `$...$` and `$$...$$`, into the reStructuredText that autodoc expects.

* `$x$` becomes :math:`x`, and a paragraph `$$x$$` a math directive of the same indentation, broken into rows where a line of the source
  ends or begins with a wide space;
* a single-backtick literal becomes a double-backtick one, or a cross reference where it is a public name of adakern;
* bold text with literals or formulas inside is cut into pieces, because reStructuredText cannot nest markup;
* a bar outside of literals and formulas is escaped: reStructuredText would take it for a substitution.

Runs before napoleon, which then sees ordinary Google or numpydoc sections.
"""

from __future__ import annotations

import re
from typing import Any

import adakern

_DISPLAY = re.compile(r"^([ ]*)\$\$(.+?)\$\$[ ]*$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(
    r"(?P<literal>``.+?``|:[\w:]+:`[^`]+`)|`(?P<code>[^`]+)`|\$(?P<math>[^$]+)\$|(?P<bar>\|)", re.DOTALL
)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_METHODS = ("save", "predict", "variance", "cross_kernel", "density")


def _targets() -> dict[str, str]:
    """Names that a docstring may write in backticks, and the entry of the reference each of them means."""
    names = {name: f"adakern.{name}" for name in adakern.__all__ if not name.startswith("_")}
    names |= {f"adakern.{name}": target for name, target in names.items()}
    names |= {f"Solution.{method}": f"adakern.Solution.{method}" for method in _METHODS}
    return names


def convert(text: str, targets: dict[str, str]) -> str:
    """One docstring, from Markdown to reStructuredText."""
    blocks: list[str] = []

    def display(match: re.Match[str]) -> str:
        indent, formula = match.groups()
        body = _rows([line.strip() for line in formula.strip().splitlines()])
        inner = "\n".join(f"{indent}   {line}" for line in body)
        blocks.append(f"\n{indent}.. math::\n\n{inner}\n")
        return f"\0{len(blocks) - 1}\0"

    def inline(match: re.Match[str]) -> str:
        if match["literal"]:
            return match["literal"]
        if match["bar"]:
            return r"\|"
        if match["math"]:
            return _spaced(match, f":math:`{' '.join(match['math'].split())}`")
        code = " ".join(match["code"].split())
        if code in targets:
            return _spaced(match, f":py:obj:`{code} <{targets[code]}>`")
        return _spaced(match, f"``{code}``")

    text = _DISPLAY.sub(display, text)
    text = _BOLD.sub(lambda match: _unnested(match[1]), text)
    paragraphs = re.split(r"(\n[ ]*\n)", text)
    paragraphs = [part if part.lstrip().startswith(">>>") else _INLINE.sub(inline, part) for part in paragraphs]
    text = "".join(paragraphs)
    return re.sub("\0(\\d+)\0", lambda match: blocks[int(match[1])], text)


def _rows(lines: list[str]) -> list[str]:
    r"""A formula of several equations, one to a row: a \quad or \qquad at the end or start of a line divides two."""
    equations = re.split(r"\\q?quad\n|\n\\q?quad ?", "\n".join(lines))
    if len(equations) == 1:
        return lines
    return ["\\begin{gathered}", *" \\\\[1ex]\n".join(equations).split("\n"), "\\end{gathered}"]


def _unnested(bold: str) -> str:
    """Bold text whose literals and formulas stand outside of the bold pieces."""
    parts = re.split(r"(`[^`]+`|\$[^$]+\$)", bold)
    marked = [
        part if i % 2 else re.sub(r"\S(?:.*\S)?", r"**\g<0>**", part, flags=re.DOTALL) for i, part in enumerate(parts)
    ]
    return "".join(marked)


def _spaced(match: re.Match[str], markup: str) -> str:
    """reStructuredText wants a space or punctuation around markup; an escaped space stands in where there is none."""
    text, begin, end = match.string, match.start(), match.end()
    before = "\\ " if begin > 0 and (text[begin - 1].isalnum() or text[begin - 1] == "$") else ""
    after = "\\ " if end < len(text) and (text[end].isalnum() or text[end] in "²³¹⁺⁻") else ""
    return before + markup + after


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = convert("\n".join(lines), _targets())
    if what in ("attribute", "property"):  # napoleon would take what stands before a colon for a type
        text = re.sub(r"^([^\n]*?): ", r"\1:\n", text)
    lines[:] = text.split("\n")


def setup(app: Any) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _process, priority=400)  # napoleon listens at 500
    return {"version": "1", "parallel_read_safe": True}
