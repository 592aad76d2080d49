"""How the documentation is built: `uv run nox -s docs`."""

import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.domains.python import PythonDomain

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
settings = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))

project = "Roxxel"
author = "the Roxxel developers"
project_copyright = author
version = release = metadata.version("roxxel")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "generated",
    "elsewhere",
]
exclude_patterns = ["_build"]
default_role = "name"

html_theme = "furo"
html_title = f"Roxxel {version}"
html_favicon = html_logo = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = html_show_sourcelink = False
repository = settings["tool"]["roxxel"]["repository"]
# The blue of the logo, dark enough for text on white and light enough on black.
html_theme_options: dict[str, Any] = {
    f"{theme}_css_variables": {
        "color-brand-primary": color,
        "color-brand-content": color,
        "color-brand-visited": color,
    }
    for theme, color in (("light", "#1d5fc2"), ("dark", "#7fb0ff"))
}
if repository:
    html_theme_options |= {
        "source_repository": repository,
        "source_branch": "main",
        "source_directory": "docs/",
    }
html_static_path = ["_static"]
html_css_files = ["roxxel.css"]
html_search_scorer = str(HERE / "_static" / "scorer.js")
copybutton_exclude = ".linenos, .gp, .go"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
}
autoclass_content = "both"  # `Trainer.__init__` documents its arguments
autodoc_typehints = "signature"
# Of a bridge alone, and several gigabytes.
autodoc_mock_imports = ["torch", "olmo_core", "torchtitan", "levanter", "tunix"]
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
_named = {name: name for name in ("Tokens", "npt.ArrayLike", "npt.DTypeLike")}
# Of an overload, `generated.py` does not see the signature.
_variables = dict.fromkeys(("_Name", "_Leaf", "_Named", "_Tree"), "Any")
autodoc_type_aliases = _named | _variables
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72

# Sphinx calls the attributes of a class "Variables".
_class: Any = PythonDomain.directives["class"]
for _field in _class.doc_field_types:
    if _field.name == "variable":
        _field.label = "Attributes"


def setup(app: Any) -> None:
    """Make the navigation of all pages of source code once for each depth.

    Each is outside the tree, and the tree of a page takes 0.1 s.
    """
    trees: dict[int, Any] = {}

    def share_tree(_app: Any, page: str, _template: str, context: Any, _: Any) -> None:
        if page.startswith("_modules/"):
            make, depth = context["toctree"], page.count("/")

            def tree(**options: Any) -> Any:
                if depth not in trees:
                    trees[depth] = make(**options)
                return trees[depth]

            context["toctree"] = tree

    app.connect("html-page-context", share_tree, priority=100)  # before furo
