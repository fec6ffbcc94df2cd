"""Configuration of Sphinx."""

from importlib.metadata import version as version_of

project = "Flask-CronJobs"
author = "Flask-CronJobs contributors"
copyright = f"2026 {author}"
version = release = version_of("Flask-CronJobs")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
# Each name in a docstring leads somewhere, but for those of other projects: those need a network.
nitpicky = True
default_role = "py:obj"
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(blinker|celery|click|collections|contextlib|datetime|flask|flask_sqlalchemy|redis|sqlalchemy)\..*",
    ),
    (r"py:.*", r"(datetime|timedelta|Flask|SQLAlchemy|Namespace|Engine|MetaData|scoped_session)"),
    # Types of ours that the text beside them explains.
    (
        r"py:.*",
        r"(.*\.)?~?(H|P|R|T|U|JSON|RetryCallable|AroundHook|Authorize|Actor|Catchup|Order|Overlap|Replace|UniqueWhile|Bookkeeping|Declaration)",
    ),
    (r"py:obj", r"types\..*"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Otherwise the two hyphens of an option become one dash.
smartquotes = False

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["docs.css"]
html_theme_options = {"light_css_variables": {"code-font-size": "78%"}}

# The engines are optional, and their functions are documented all the same.
autodoc_mock_imports = ["billiard", "celery", "kombu"]
