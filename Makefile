# Needs Python 3.11 or newer and make; no compiler, no Node, no database. Everything lives in .venv and var/.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check --quiet --require-hashes --only-binary :all:
# How many tests run side by side in the first pass; a third one uses what journeys that wait leave of two cores.
JOBS ?= 2
TEST_SERVER := $(or $(RECOURSE_TEST_SERVER_URL),postgres://postgres@127.0.0.1:5432/postgres)

.PHONY: up install s3 test prove lint bench lock pictures

up: install
	exec $(PY) manage.py up $(ARGS)

install: $(VENV)/.runtime $(VENV)/bin/recourse

# For artifacts in an S3-compatible bucket.
s3: install
	$(PIP) -r requirements-s3.lock

# Tests start dozens of processes; what is compiled is kept for the next one, also where the environment forbids it.
test prove: export PYTHONDONTWRITEBYTECODE :=

# Every test once on the embedded PostgreSQL; those that speak to the database again on a server, when one answers.
test: lint
	$(PY) -m pytest -n $(JOBS) --dist loadgroup $(ARGS)
	$(PY) -m tests.second_pass $(ARGS)

prove: $(VENV)/.development
	$(PY) -m pytest -m prove $(ARGS)

lint: $(VENV)/.development
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

# Needs a PostgreSQL server, and the run list a database of its own: bench/README.md says how.
bench: $(VENV)/.development
	$(PY) bench/throughput.py
	$(PY) bench/latency.py
	$(PY) bench/application_api.py
	$(PY) bench/audit.py
	$(PY) bench/approvals.py
	$(PY) bench/recovery_time.py
	$(PY) bench/schedules.py
	$(PY) bench/triggers.py
	$(PY) bench/backfills.py
	$(PY) bench/backfill_pages.py
	$(PY) bench/bulk.py
	$(PY) bench/bulk_pace.py
	$(PY) bench/run_page.py
	$(PY) bench/store.py
	$(PY) bench/idle_memory.py
	$(PY) bench/web_server.py

# The pictures of the documents, from a console of their own with the samples; needs Chromium.
pictures: $(VENV)/.development
	$(PY) -m tests.browser.pictures $(ARGS)

# After a change of pyproject.toml; the lock files name no index and no path.
lock:
	$(PY) -m uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" --quiet -o requirements.lock
	$(PY) -m uv pip compile pyproject.toml --extra s3 --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" --quiet -c requirements.lock -o requirements-s3.lock
	$(PY) -m uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --custom-compile-command "make lock" --quiet -c requirements.lock -o requirements-dev.lock

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# The project and its SDK are importable from where they lie: paths relative to site-packages, so that the tree may move.
$(VENV)/.runtime: requirements.lock | $(PY)
	$(PIP) -r requirements.lock
	printf '../../../..\n../../../../sdk\n' > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/recourse-console.pth"
	touch $@

$(VENV)/bin/recourse: Makefile | $(PY)
	printf '#!/bin/sh\nexec "$$(dirname "$$0")/python" -m recourse "$$@"\n' > $@
	chmod +x $@

$(VENV)/.development: requirements-dev.lock $(VENV)/.runtime | $(VENV)/bin/recourse
	$(PIP) -r requirements-dev.lock
	touch $@
