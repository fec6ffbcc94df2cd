# Everything runs in .venv, which make builds. You need Python 3.10 or newer and a network.
PYTHON  = python3
SECONDS = 600
COUNT   = 1000
ARGS    =

# Else each process that a test starts compiles the package anew, where this is set.
export PYTHONDONTWRITEBYTECODE =

BIN     = .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What `make oldest` and `make newest` test in: apart from .venv, for each Python.
OLDEST  = .environments/oldest-$(notdir $(PYTHON))
NEWEST  = .environments/newest-$(notdir $(PYTHON))

.PHONY: help venv demo demo-celery test slow layers oldest newest coverage lint format types docs soak fuzz browser bench screenshots clean
.DEFAULT_GOAL := help

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

venv: .venv/dev ## Build .venv with everything that developers use

demo: .venv/example ## Run the example app's due tasks and show what happened
	$(BIN)/python -m example_app.demo $(ARGS)

demo-celery: .venv/tests ## Run the example app's due tasks in a Celery worker (needs redis-server)
	$(BIN)/python -m example_app.demo_celery $(ARGS)

test: .venv/tests ## Run the tests on SQLite and on PostgreSQL (ARGS="-k sqlite")
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --max-worker-restart 0 --no-loadscope-reorder $(ARGS)

slow: .venv/tests ## Run the tests that kill processes, and other slow ones
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --max-worker-restart 0 -m slow $(ARGS)

layers: .venv/tests ## Run the tests of the public API with psycopg2, Flask-SQLAlchemy-Lite and SQLAlchemy alone
	for layer in psycopg2 lite plain; do \
		$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --max-worker-restart 0 --layer $$layer tests/api $(ARGS) || exit 1; \
	done

oldest: $(OLDEST)/tests ## Run the tests with the oldest versions declared (PYTHON=python3.10)
	$(OLDEST)/bin/python -m pytest --numprocesses 3 --dist loadfile --max-worker-restart 0 $(ARGS)

newest: ## Run the tests with the newest versions (PYTHON=python3.14)
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[tests,lite]'
	$(NEWEST)/bin/python -m pytest --numprocesses 3 --dist loadfile --max-worker-restart 0 $(ARGS)

coverage: .venv/dev ## Run the tests and report the lines they did not reach
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: .venv/dev ## Check style and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

format: .venv/dev ## Fix style where that is automatic
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: .venv/dev ## Check types, and that the public API is completely typed
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright --verifytypes flask_cronjobs --ignoreexternal

docs: .venv/dev ## Build the documentation in docs/_build/html
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build/html
	@echo "The documentation is at file://$(CURDIR)/docs/_build/html/index.html"

soak: .venv/tests ## Run ticks under random faults and check the outcome (SECONDS=600)
	$(BIN)/python -m tests.soak --seconds $(SECONDS) $(ARGS)

fuzz: .venv/tests ## Interrupt handlers at random moments and check what is left (COUNT=1000 ARGS=--queries)
	$(BIN)/python -m tests.fuzz --interruptions $(COUNT) $(ARGS)

browser: .venv/browser ## Test the pages in a real browser, which is installed where apt-get can
	$(BIN)/python -m pytest -m browser $(ARGS)

bench: .venv/tests ## Run the benchmarks, and fail if one misses its bound
	$(BIN)/python -m benchmarks $(ARGS)

screenshots: .venv/browser ## Take the screenshots in docs/
	$(BIN)/python -m example_app.screenshots $(ARGS)

clean: ## Remove everything that make has built
	rm -rf .venv .environments benchmarks/.environments build dist docs/_build htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One after the other, so that two of them never install into .venv at the same time (make -j).
.venv/base:
	$(PYTHON) -m venv --clear .venv
	touch $@

.venv/example: .venv/base pyproject.toml
	$(INSTALL) --editable '.[example]'
	touch $@

.venv/tests: .venv/example
	$(INSTALL) --editable '.[tests,lite]'
	touch $@

.venv/browser: .venv/tests tests/browser/install.sh
	$(INSTALL) --editable '.[browser]'
	sh tests/browser/install.sh .venv/axe
	touch $@

.venv/dev: .venv/tests
	$(INSTALL) --editable '.[dev]'
	touch $@

$(OLDEST)/tests: pyproject.toml tests/repository/oldest.py
	$(PYTHON) -m venv --clear $(OLDEST)
	$(PYTHON) tests/repository/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(OLDEST)/constraints.txt --editable '.[tests]'
	touch $@
