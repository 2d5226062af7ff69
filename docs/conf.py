"""Sphinx configuration: `make docs` builds the pages, and a warning is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import adakern

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "adakern"
author = "The adakern developers"
project_copyright = "The adakern developers"
version = release = adakern.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax from a package: the pages load nothing from another host
    "myst_parser",
    "sphinx_copybutton",
    "markdown_docstrings",  # docs/_ext: the docstrings are Markdown with $...$
]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

autosummary_generate = False  # the tables point at the entries of the reference pages
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # shapes are in the docstrings, next to the equation
autoclass_content = "class"
autodoc_class_signature = "mixed"
napoleon_use_param = False
napoleon_use_rtype = False
# "X, y: ..." names two attributes; a colon in the sentence under "Returns" does not end a type.
napoleon_custom_sections = [("Attributes", "params_style"), "Returns"]

html_theme = "furo"
html_title = f"adakern {release}"
html_static_path = ["_static"]
html_css_files = ["adakern.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
