"""Sphinx settings."""

import devicekit

project = "devicekit"
author = project_copyright = "the devicekit authors"
release = version = devicekit.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = "devicekit"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
pygments_dark_style = "monokai"  # the default underlines names like links
smartquotes_action = "D"  # dashes alone: a quoted error must be found by who searches for it
default_role = "code"  # a name in backticks in a docstring
napoleon_use_ivar = True  # attributes as a list, not as an entry each
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
nitpicky = True
# Types of torch and of the standard library: their inventories would be fetched from the network.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(torch|typing|collections|types|contextlib|abc|argparse|multiprocessing|hypothesis)\b.*",
    ),
    (r"py:class", r"devicekit\..*\.(T|T_co|C|P|R|_.+)"),  # type variables, private names
    (r"py:class", r"(tuple|list|dict|Mapping|Literal)\[.*"),  # halves of annotations cut at a comma
    (r"py:(class|obj)", r"[A-Z][A-Za-z]*|optional|_[A-Za-z]+"),
]


def _set_language(app, page, template, context, doctree):
    """Marks the translated pages, so that browsers choose the right glyphs."""
    folder = page.partition("/")[0]
    context["language"] = {"ja": "ja", "zh": "zh-Hans"}.get(folder, "en")


def setup(app):
    """Registers what this file adds to Sphinx."""
    app.connect("html-page-context", _set_language)
