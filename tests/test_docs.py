"""The documentation: its code runs as written, its reference is complete, and the version is the same everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import adakern

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^\.\. (?:auto(?:class|function|exception|module)|py:data):: (\S+)$", re.MULTILINE)


def _blocks(page: str) -> list[tuple[int, str]]:
    """The ```python blocks of a page, each with the number of its first line."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in _FENCE.finditer(text)]


@pytest.mark.long
@pytest.mark.slow
def test_code_of_index_and_quickstart_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # the pages write files
    namespace: dict[str, object] = {}
    for page in ("index.md", "quickstart.md"):
        blocks = _blocks(page)
        assert blocks, page
        for line, block in blocks:  # padded, so that a traceback names the line of the page
            exec(compile("\n" * line + block, str(DOCS / page), "exec"), namespace)
    assert (tmp_path / "rich.safetensors").exists()
    quoted = re.search(
        r"^```text\n(.*?)^```$", (DOCS / "quickstart.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert quoted is not None
    assert capsys.readouterr().out.endswith(quoted[1])  # the error messages, which the last block prints


@pytest.mark.slow
@pytest.mark.long
def test_code_of_networks_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = _blocks("networks.md")
    assert blocks
    for line, block in blocks:
        exec(compile("\n" * line + block, str(DOCS / "networks.md"), "exec"), namespace)
    assert (tmp_path / "network.safetensors").exists()


@pytest.mark.slow
@pytest.mark.long
def test_code_of_adaptive_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for line, block in _blocks("adaptive.md"):
        exec(compile("\n" * line + block, str(DOCS / "adaptive.md"), "exec"), namespace)
    assert capsys.readouterr().out.rstrip().endswith("True")  # the density has two humps


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "page, share", [("exact.md", 0.8), ("flow.md", 1.0), ("dynamics.md", 0.8), ("convolution.md", 0.9)]
)
def test_code_of_a_page_prints_what_it_quotes(page, share, tmp_path, monkeypatch, capsys):
    """Closed forms to the digit; sampled numbers are those of the same seed, on the same machine."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = _blocks(page)
    assert blocks
    for line, block in blocks:
        exec(compile("\n" * line + block, str(DOCS / page), "exec"), namespace)
    printed = capsys.readouterr().out.split()
    text = (DOCS / page).read_text(encoding="utf-8")
    quoted = " ".join(re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)).split()
    assert len(printed) == len(quoted)
    same = sum(ours == theirs for ours, theirs in zip(printed, quoted, strict=True))
    assert same >= share * len(quoted)  # the last digits of samples differ between machines


def test_every_public_name_is_in_the_reference():
    documented = set()
    for page in (DOCS / "reference").glob("*.rst"):
        documented.update(_DIRECTIVE.findall(page.read_text(encoding="utf-8")))
    assert {f"adakern.{name}" for name in adakern.__all__} <= documented
    for module in (adakern.activations, adakern.datasets, adakern.finite, adakern.linear):
        classes = {name for name in module.__all__ if name != "NAMES"}
        assert {f"{module.__name__}.{name}" for name in classes} <= documented


def test_version_is_the_same_in_citation_and_changelog():
    assert f"## [{adakern.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == "adakern"
    assert str(citation["version"]) == adakern.__version__


@pytest.mark.parametrize(
    "markdown, expected",
    [
        ("as $a<b$ here", "as :math:`a<b` here"),
        ("`x` and `MLP`", "``x`` and :py:obj:`MLP <adakern.MLP>`"),
        ("|a| / |b|", r"\|a\| / \|b\|"),
        ("$|a|$ stays", ":math:`|a|` stays"),
        ("over\n$a\n+b$", "over\n:math:`a +b`"),
        ("  $$x\n    =y$$", "\n  .. math::\n\n     x\n     =y\n"),
        (
            "$$x=1,\\quad\n  y=2$$",
            "\n.. math::\n\n   \\begin{gathered}\n   x=1, \\\\[1ex]\n   y=2\n   \\end{gathered}\n",
        ),
        ("**What `x` means.** Then", "**What** ``x`` **means.** Then"),
        (">>> f(`a|b`)", ">>> f(`a|b`)"),
    ],
)
def test_docstrings_become_restructured_text(monkeypatch, markdown, expected):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import markdown_docstrings

    assert markdown_docstrings.convert(markdown, {"MLP": "adakern.MLP"}) == expected
