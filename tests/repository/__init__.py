"""Tests of the project as a whole: imports, docs, migrations, query plans, platforms."""
