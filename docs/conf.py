"""Configuration of Sphinx."""

from importlib.metadata import version as version_of

project = "Flask-CronJobs"
author = "Flask-CronJobs contributors"
copyright = f"2026 {author}"
version = release = version_of("Flask-CronJobs")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False
