"""The site: `make docs` builds these pages and the reference from the docstrings, without the network."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

from lipschitz_rnn import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "lipschitz-rnn"
author = "The lipschitz-rnn authors"
project_copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "docstrings",
    "command_help",
]
suppress_warnings = ["myst.header"]  # units.md starts with sections of the third level
default_role = "py:obj"  # `name` in a docstring links to the name where it is on the site

# Headings get the anchors that code hosts give them, so that a link works in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Signatures carry types and defaults, one parameter a line; descriptions come from the docstrings.
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"lipschitz-rnn {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def leave_out_pages_to_come(app: Sphinx, docname: str, source: list[str]) -> None:
    """A page to come may have its place in the table of contents: `name*` without a page is no fault."""
    if docname == "index":
        lines = source[0].splitlines()
        source[0] = "\n".join(line for line in lines if not line.endswith("*") or any(HERE.glob(f"{line}.md")))


def setup(app: Sphinx) -> None:
    app.connect("source-read", leave_out_pages_to_come)
