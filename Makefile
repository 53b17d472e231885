# Everything a checkout can do. A fresh machine needs python3.11 or later (and a C compiler, for the compiled build).
#
#   make run                         start a broker          make run ARGS="--port 5673"
#   make test                        the test suite, in about 10 minutes        make test TESTS=tests/wire
#   make test-all                    the slow tests, the plain files, and then `make test`
#   make proof ARGS=...              long proofs, in pieces  make proof ARGS="power --minutes 25"
#   make coverage                    line coverage of the plain files, child processes included
#   make build                       the wheels: compiled for this platform, and pure
#   make lint | format | docs | bench | demo | lock

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check install --quiet --require-hashes
STAMPS := .stamps
ARGS   ?=
TESTS  ?=
# Tests mostly wait for brokers and clients, so more of them than processors run at a time; a file stays in one process.
PYTEST := $(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(PYTEST_OPTIONS)

# What `make test-all` runs a second time over the plain files: the layers that have compiled modules, and the conformance suite.
PURE_TESTS := $(wildcard tests/wire tests/broker tests/selectors tests/storage tests/protocols tests/conformance)

# What `make coverage` runs: everything but Spark, the benchmarks, the documentation and the packaging.
COVERAGE_TESTS := $(filter-out tests/bench tests/docs tests/packaging tests/spark tests/support,$(patsubst %/__init__.py,%,$(wildcard tests/*/__init__.py)))

HAVE_CC := $(shell command -v $${CC:-cc} 2>/dev/null)

export PYTHONPATH := $(CURDIR)/src
# Bytecode is kept whatever the environment says: a test run starts hundreds of processes, which would all compile the sources.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run compiled test test-rest test-all coverage lint format docs bench bench-clients bench-staged bench-scale proof demo demo-kill build lock clean

run: $(STAMPS)/core $(STAMPS)/segments compiled
	@exec $(PY) -P -m leveret serve $(ARGS)

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Leveret needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/core: requirements/core.txt $(STAMPS)/venv
	@echo "Installing what Leveret needs into $(VENV)"
	@$(PIP) -r requirements/core.txt || \
		{ echo "What Leveret needs could not be installed. If pip found no distribution of google-re2: there is no wheel of it for" \
			"this Python and this machine, and Leveret has no fallback; use a Python that it has wheels for" >&2; exit 1; }
	@touch $@

# Without it streams stay in the log; a machine that has no wheel of Arrow goes without.
$(STAMPS)/segments: requirements/segments.txt $(STAMPS)/core
	@$(PIP) -r requirements/segments.txt || echo "Arrow could not be installed: streams are not kept as Parquet files" >&2
	@touch $@

$(STAMPS)/spark: requirements/spark.txt $(STAMPS)/dev $(STAMPS)/segments
	@echo "Installing Spark into $(VENV)"
	@$(PIP) -r requirements/spark.txt
	@touch $@

# The classes of Spark, for the JVM to map: what starts Spark in the tests starts in half the time.
$(STAMPS)/spark-classes: tools/spark_classes.py $(STAMPS)/spark
	@echo "Keeping the classes that Spark loads"
	@$(PY) tools/spark_classes.py $(VENV)/spark-classes.jsa >$(STAMPS)/spark-classes.log 2>&1 || \
		echo "They could not be kept (see $(STAMPS)/spark-classes.log): tests with Spark take longer" >&2
	@touch $@

$(STAMPS)/build: requirements/build.txt $(STAMPS)/venv
	@$(PIP) -r requirements/build.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/core
	@$(PIP) -r requirements/dev.txt
	@touch $@

# Qpid Proton for the tests with real clients: built from its sources, so that a machine which cannot goes without.
$(STAMPS)/proton: requirements/proton.txt $(STAMPS)/dev
	@$(PIP) -r requirements/proton.txt || echo "Qpid Proton could not be built: tests with it are skipped" >&2
	@touch $@

$(STAMPS)/demo: requirements/demo.txt $(STAMPS)/venv
	@$(PIP) -r requirements/demo.txt
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/venv
	@$(PIP) -r requirements/docs.txt
	@touch $@

# Quick when the sources have not changed since they were compiled.
ifeq ($(HAVE_CC),)
compiled:
	@echo "No C compiler: the hot modules run as plain Python"
else
compiled: $(STAMPS)/build
	@$(PY) tools/build_compiled.py $(COMPILE)
endif

# Everything but the tests that are marked `slow`; TESTS names what to run whatever its marks.
SELECTED := $(if $(TESTS),$(TESTS),-m "not slow")

ifeq ($(HAVE_CC),)
test: $(STAMPS)/spark $(STAMPS)/spark-classes
	LEVERET_PURE=1 $(PYTEST) $(SELECTED)

test-rest: $(STAMPS)/spark $(STAMPS)/spark-classes
	LEVERET_PURE=1 $(PYTEST) -m slow
else
test test-rest: COMPILE := --require
test: $(STAMPS)/spark $(STAMPS)/spark-classes $(STAMPS)/proton compiled
	@$(PYTEST) $(SELECTED)

# What `make test` leaves out: the slow tests, and the layers with compiled modules over the plain files.
test-rest: $(STAMPS)/spark $(STAMPS)/spark-classes $(STAMPS)/proton compiled
	@failed=0; \
	LEVERET_PURE=1 $(PYTEST) -m "not slow" $(PURE_TESTS) || failed=1; \
	$(PYTEST) -m slow && exit $$failed
endif

# Everything. `make test` comes last, also after a failure, so that the last line is that of the largest run.
test-all:
	@failed=0; \
	$(MAKE) --no-print-directory test-rest TESTS= || failed=1; \
	$(MAKE) --no-print-directory test TESTS= && exit $$failed

# Tracing slows tests down, so they get more time. The report is printed even if a test fails.
coverage: $(STAMPS)/dev $(STAMPS)/segments
	@rm -rf build/coverage && mkdir -p build/coverage
	@failed=0; \
	LEVERET_PURE=1 $(VENV)/bin/coverage run -m pytest -n 4 --dist loadfile --no-loadscope-reorder --timeout 400 $(PYTEST_OPTIONS) $(or $(TESTS),$(COVERAGE_TESTS)) || failed=$$?; \
	$(VENV)/bin/coverage combine -q && $(VENV)/bin/coverage html -q --fail-under 0 && $(VENV)/bin/coverage report && exit $$failed

lint: $(STAMPS)/spark
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell
	$(PY) tools/check_vocabulary.py
	$(PY) tools/unasync.py --check

format: $(STAMPS)/dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(STAMPS)/docs
	$(VENV)/bin/mkdocs build --strict

bench: $(STAMPS)/dev compiled
	@$(PY) -m bench.run $(ARGS)

bench-clients: $(STAMPS)/dev compiled
	@$(PY) -m bench.clients $(ARGS)

bench-staged: $(STAMPS)/dev compiled
	@$(PY) -m bench.staged $(ARGS)

bench-scale: $(STAMPS)/dev compiled
	@$(PY) -m bench.scale $(ARGS)

# Long proofs in pieces of at most 25 minutes, whose counts add up by commit: ARGS="power --minutes 25", ARGS=report.
proof: $(STAMPS)/dev $(STAMPS)/segments compiled
	@$(PY) -m bench.proof $(ARGS)

# The main job in a terminal: a shop's messages over both protocols, a pipeline on Spark that archives and counts them, and
# both the broker and the pipeline killed in the middle of it. Takes the compiled modules where they are there, and does
# not wait for them otherwise.
demo: $(STAMPS)/core $(STAMPS)/segments $(STAMPS)/demo
	@$(PY) examples/demo_pipeline.py

# The broker alone: publish, kill -9, start again, nothing confirmed is lost.
demo-kill: $(STAMPS)/core $(STAMPS)/demo
	@$(PY) examples/demo.py

# Both wheels and the source archive, with the pinned tools. Without a C compiler only the pure wheel is built.
build: COMPILE := --require
build: $(STAMPS)/dev $(STAMPS)/build compiled
	@rm -rf dist build/lib* build/bdist*
	@$(PY) -m build --no-isolation --sdist --wheel
	@LEVERET_PURE=1 $(PY) -m build --no-isolation --wheel
	@ls dist

# Pin what pyproject.toml and requirements/*.in ask for, with hashes.
lock: $(STAMPS)/dev
	$(VENV)/bin/pip-compile -q --strip-extras --no-emit-find-links --no-emit-index-url --generate-hashes --allow-unsafe --pip-args='--only-binary google-re2' \
		-o requirements/core.txt pyproject.toml
	for group in segments build dev demo docs proton spark; do \
		$(VENV)/bin/pip-compile -q --strip-extras --no-emit-find-links --no-emit-index-url --generate-hashes --allow-unsafe \
			-o requirements/$$group.txt requirements/$$group.in || exit 1; done

clean:
	rm -rf build dist site $(STAMPS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
