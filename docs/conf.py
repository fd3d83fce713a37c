"""Configuration of the documentation, which `make docs` builds."""

import sys
from pathlib import Path

from touche_llm import __version__

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

project = "touche_llm"
release = version = __version__
copyright = "the authors of touche_llm"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated",
    "browsing",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
maximum_signature_line_length = 88
html_theme = "furo"
html_title = f"touche_llm {release}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
# Of a console, what is typed is copied, without prompts and output.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
html_show_sphinx = False
