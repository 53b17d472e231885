# Development tasks. Requires Python 3.11 or later, and a C compiler for the compiled build.
#
#   make run                         start a broker          make run ARGS="--port 5673"
#   make test                        the test suite, in about 10 minutes        make test TESTS=tests/wire
#   make test-all                    the slow tests beside those on plain Python files, and then `make test`
#   make test-cluster                the tests with the messages of brokers in PostgreSQL
#   make test-frameworks             the examples of frameworks, with those whose toolchains are large
#   make bench-cluster ARGS=...      faults in a cluster under load      make bench-cluster ARGS="owner --rounds 20"
#   make proof ARGS=...              long proofs, in pieces  make proof ARGS="power --minutes 25"
#   make coverage                    line coverage of the plain Python files, including child processes
#   make wheels                      the source archive and the wheels: pure, and compiled for each version of Python
#   make deb                         a Debian package of the wheels, for the Python of this machine
#   make jar                         the data source for Spark in the JVM (build/jvm), with Java 17 and Maven
#   make links                       the links of the documentation to other sites, over the internet
#   make lint | format | docs | bench | demo | lock
#   make extra-spark                 the libraries of an extra, for `make run` and your programs in the same environment
#   make setup                       install everything that these need

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check install --quiet --require-hashes
STAMPS := .stamps
ARGS   ?=
PYTHONS ?=
TESTS  ?=
# Tests mostly wait for brokers and clients, so run more processes than CPUs. The tests of a file share a process.
WORKERS := 5
# A test whose cleanup hangs after its timeout ends the run after these seconds, more than the longest timeout, with the
# stacks of all threads.
HANGS      := $(if $(TESTS),1900,700)
HANGS_SLOW := 1900
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 \
	-o faulthandler_exit_on_timeout=true -o faulthandler_timeout=$(HANGS) $(PYTEST_OPTIONS)

# Tests that `make test-all` repeats on the plain files, with all examples of property tests: layers with compiled modules,
# segments, and the conformance suite.
PURE_TESTS := $(wildcard tests/wire tests/broker tests/selectors tests/storage tests/segments tests/protocols tests/conformance)

# Tests for `make coverage`: those of `make test` that are no applications of Spark, benchmarks, documentation or packages, and
# without the suites that mostly wait for processes, which tracing slows down most.
COVERAGE_TESTS := $(filter-out tests/bench tests/conformance tests/docs tests/faults tests/frameworks tests/interop tests/packaging tests/spark \
	tests/support,$(patsubst %/__init__.py,%,$(wildcard tests/*/__init__.py)))

# What tests and linters import.
TEST_EXTRAS := $(addprefix $(STAMPS)/,dev segments websocket payloads oauth otel cluster spark)

HAVE_CC := $(shell command -v $${CC:-cc} 2>/dev/null)

export PYTHONPATH := $(CURDIR)/src
# Always cache bytecode, because a test run starts hundreds of processes, which would all compile the sources.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run setup compiled test test-slow test-layers test-plain test-cluster test-frameworks test-all frameworks objects coverage lint format docs links site bench bench-clients bench-staged bench-scale bench-check bench-cluster proof demo demo-kill cluster-demo wheels deb jar lock clean

# Starts on the plain files: a first compilation takes minutes, in which a broker in the foreground does not listen, and one in the
# background has less than half of a small machine. `make compiled` compiles; from then on, `make run` uses the result.
run: $(STAMPS)/core $(VENV)/bin/leveret
	@echo "The command is $(VENV)/bin/leveret; \`. $(VENV)/bin/activate\` adds it to the PATH of another terminal"
	@exec $(PY) -P -m leveret serve $(ARGS)

setup: $(TEST_EXTRAS) $(STAMPS)/spark-classes $(STAMPS)/proton $(STAMPS)/build $(STAMPS)/docs $(STAMPS)/frameworks

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Leveret requires Python 3.11 or later; select it with PYTHON=..." >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# The broker with the HTTP API. One call of pip, because its own start takes a second.
$(STAMPS)/core: requirements/core.txt requirements/management.txt $(STAMPS)/venv
	@echo "Installing dependencies into $(VENV)"
	@$(PIP) -r requirements/core.txt -r requirements/management.txt || \
		{ echo "cannot install the dependencies; if pip found no distribution of google-re2, use a Python version for which" \
			"google-re2 has wheels on this platform" >&2; exit 1; }
	@touch $@

# The command and the modules of this checkout, which is not installed.
$(VENV)/bin/leveret: Makefile $(STAMPS)/venv
	@echo "$(CURDIR)/src" >"$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/leveret.pth"
	@printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" -P -m leveret "$$@"\n' "$(CURDIR)/src" "$(CURDIR)/$(PY)" >$@
	@chmod +x $@

# Optional: without Arrow, streams are not sealed.
$(STAMPS)/segments: requirements/segments.txt $(STAMPS)/core
	@$(PIP) -r requirements/segments.txt || echo "cannot install Arrow: streams are not sealed as Parquet files" >&2
	@touch $@

# Optional: without it, the broker has no listener for WebSockets.
$(STAMPS)/websocket: requirements/websocket.txt $(STAMPS)/core
	@$(PIP) -r requirements/websocket.txt || echo "cannot install wsproto: there is no listener for WebSockets" >&2
	@touch $@

# Optional: without it, the console decodes no Protobuf and no Avro.
$(STAMPS)/payloads: requirements/payloads.txt $(STAMPS)/core
	@$(PIP) -r requirements/payloads.txt || echo "cannot install Protobuf and Avro: the console does not decode them" >&2
	@touch $@

# Optional: without it, the broker accepts no tokens.
$(STAMPS)/oauth: requirements/oauth.txt $(STAMPS)/core
	@$(PIP) -r requirements/oauth.txt || echo "cannot install the OAuth 2 libraries: the broker accepts no tokens" >&2
	@touch $@

# Optional: without it, the broker exports neither traces nor metrics.
$(STAMPS)/otel: requirements/otel.txt $(STAMPS)/core
	@$(PIP) -r requirements/otel.txt || echo "cannot install OpenTelemetry: there are no traces" >&2
	@touch $@

# Optional: without it, the broker stores messages in its data directory only.
$(STAMPS)/cluster: requirements/cluster.txt $(STAMPS)/core
	@$(PIP) -r requirements/cluster.txt || echo "cannot install psycopg: messages cannot be stored in PostgreSQL" >&2
	@touch $@

$(STAMPS)/spark: requirements/spark.txt $(STAMPS)/segments
	@echo "Installing Spark into $(VENV)"
	@$(PIP) -r requirements/spark.txt
	@touch $@

# An archive of Spark's classes for the JVM, with which Spark starts in half the time.
$(STAMPS)/spark-classes: tools/spark_classes.py $(STAMPS)/spark
	@echo "Archiving Spark's classes"
	@$(PY) tools/spark_classes.py $(VENV)/spark-classes.jsa >$(STAMPS)/spark-classes.log 2>&1 || \
		echo "cannot archive Spark's classes (see $(STAMPS)/spark-classes.log): Spark tests take longer" >&2
	@touch $@

extra-%: $(STAMPS)/% $(VENV)/bin/leveret ;
extra-management: $(STAMPS)/core $(VENV)/bin/leveret ;
extra-pipeline extra-iceberg extra-delta: extra-spark ;

$(STAMPS)/build: requirements/build.txt $(STAMPS)/venv
	@$(PIP) -r requirements/build.txt
	@touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/core
	@$(PIP) -r requirements/dev.txt
	@touch $@

# Qpid Proton for the interop tests. Optional, because it is built from source.
$(STAMPS)/proton: requirements/proton.txt $(STAMPS)/dev
	@$(PIP) -r requirements/proton.txt || echo "cannot build Qpid Proton: its tests are skipped" >&2
	@touch $@

# Frameworks whose examples are tested, in environments of their own below build/. Optional.
INTO = $(PY) -m pip --disable-pip-version-check --python $(1)/bin/python install --quiet --no-compile --require-hashes

frameworks: $(STAMPS)/frameworks
$(STAMPS)/frameworks: requirements/frameworks.txt requirements/core.txt $(STAMPS)/venv
	@$(PY) -m venv --without-pip build/frameworks
	@$(call INTO,build/frameworks) -r requirements/core.txt -r requirements/frameworks.txt || \
		{ rm -rf build/frameworks; echo "cannot install the frameworks: the tests of their examples are skipped" >&2; }
	@touch $@

$(STAMPS)/airflow: requirements/airflow.txt $(STAMPS)/venv
	@$(PY) -m venv --without-pip build/airflow
	@$(call INTO,build/airflow) -r requirements/airflow.txt || \
		{ rm -rf build/airflow; echo "cannot install Airflow: the test of its example is skipped" >&2; }
	@touch $@

# An object store for the test of sealed streams in one, in an environment of its own. Optional.
objects: $(STAMPS)/objects
$(STAMPS)/objects: requirements/objects.txt requirements/core.txt requirements/cluster.txt requirements/segments.txt $(STAMPS)/venv
	@$(PY) -m venv --without-pip build/objects
	@$(call INTO,build/objects) -r requirements/core.txt -r requirements/cluster.txt -r requirements/segments.txt \
		-r requirements/objects.txt || \
		{ rm -rf build/objects; echo "cannot install an object store: its test is skipped" >&2; }
	@touch $@

$(STAMPS)/demo: requirements/demo.txt $(STAMPS)/venv
	@$(PIP) -r requirements/demo.txt
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/venv
	@$(PIP) -r requirements/docs.txt
	@touch $@

$(STAMPS)/links: requirements/links.txt $(STAMPS)/venv
	@$(PY) -m venv --without-pip build/links
	@$(call INTO,build/links) -r requirements/links.txt
	@touch $@

# Does nothing if the sources have not changed since the last compilation.
ifeq ($(HAVE_CC),)
compiled:
	@echo "No C compiler: the hot modules run as plain Python"
else
compiled: $(STAMPS)/build
	@$(PY) tools/build_compiled.py $(COMPILE)
endif

# All tests except those marked `slow`, or the given TESTS regardless of their marks.
SELECTED := $(if $(TESTS),$(TESTS),-m "not slow")

ifeq ($(HAVE_CC),)
test test-slow: export LEVERET_PURE := 1
else
test test-slow: COMPILE := --require
test test-slow: compiled $(STAMPS)/proton
endif

test: $(TEST_EXTRAS) $(STAMPS)/spark-classes
	@$(PYTEST) $(SELECTED)

# Property tests try all of their examples (tests/support/examples.py) here and in test-layers. One process finds the files
# with slow tests, so that the workers do not collect all others, too; if it fails, they do, and show why.
test-slow: export LEVERET_THOROUGH := 1
test-slow: $(TEST_EXTRAS) $(STAMPS)/spark-classes
	@files=$$(listed=$$($(PY) -m pytest --collect-only -q -m slow) && printf '%s\n' "$$listed" | sed -n 's/::.*//p' | sort -u); \
	$(PYTEST) -o faulthandler_timeout=$(HANGS_SLOW) -m slow $$files

# The layers with compiled modules, on the plain files.
test-layers: export LEVERET_THOROUGH := 1
test-layers: $(TEST_EXTRAS)
	@LEVERET_PURE=1 $(PYTEST) -m "not slow" $(PURE_TESTS)

# Tests for other versions of Python: on the plain files, without Spark.
#   make test-plain PYTHON=python3.13 VENV=.venv/3.13 STAMPS=.stamps/3.13
test-plain: $(STAMPS)/dev $(STAMPS)/segments $(STAMPS)/websocket $(STAMPS)/payloads $(STAMPS)/oauth $(STAMPS)/otel $(STAMPS)/cluster
	@LEVERET_PURE=1 $(PYTEST) -m "not slow" $(or $(TESTS),--ignore tests/spark)

# The tests with the messages of every broker in PostgreSQL, which Debian's packages of it serve (or those in
# LEVERET_TEST_POSTGRES). Those about the files of a data directory are skipped. Tests with Spark are left out unless TESTS names
# them: most are about sealed streams.
test-cluster: $(STAMPS)/dev $(STAMPS)/segments $(STAMPS)/websocket $(STAMPS)/payloads $(STAMPS)/oauth $(STAMPS)/otel $(STAMPS)/cluster
	@LEVERET_TEST_STORE=postgresql $(PYTEST) $(or $(TESTS),-m "not slow" --ignore tests/spark)

# The examples of frameworks, against a broker process, too, and those with large toolchains: Airflow, Node.js, Go, Java.
test-frameworks: $(STAMPS)/dev $(STAMPS)/frameworks $(STAMPS)/airflow
	@LEVERET_TEST_FRAMEWORKS=all $(PY) -m pytest $(PYTEST_OPTIONS) $(or $(TESTS),tests/frameworks)

# All tests. `make test` comes last, even after a failure, so that the last line is the result of the largest run. The slow tests
# mostly wait for brokers, Spark and browsers, so the tests of the layers run beside them; their output follows.
test-all: $(TEST_EXTRAS) $(STAMPS)/spark-classes $(STAMPS)/proton compiled
	@failed=0; output=$$(mktemp); \
	$(if $(HAVE_CC),$(MAKE) --no-print-directory test-layers WORKERS=3,true) >"$$output" 2>&1 & layers=$$!; \
	trap 'kill $$layers 2>/dev/null; rm -f "$$output"' EXIT; trap 'exit 130' INT TERM; \
	$(MAKE) --no-print-directory test-slow || failed=1; \
	wait $$layers || failed=1; layers=; \
	cat "$$output"; \
	$(MAKE) --no-print-directory test TESTS= && exit $$failed

# Tracing slows tests down, so the timeout is longer. Print the report even if a test fails.
coverage: $(STAMPS)/dev $(STAMPS)/segments $(STAMPS)/websocket $(STAMPS)/payloads $(STAMPS)/oauth $(STAMPS)/otel $(STAMPS)/cluster
	@rm -rf build/coverage && mkdir -p build/coverage
	@failed=0; \
	LEVERET_PURE=1 $(VENV)/bin/coverage run -m pytest -n 5 --dist loadfile --no-loadscope-reorder --timeout 400 $(PYTEST_OPTIONS) $(or $(TESTS),-m "not slow" $(COVERAGE_TESTS)) || failed=$$?; \
	$(VENV)/bin/coverage combine -q && $(VENV)/bin/coverage html -q --fail-under 0 && $(VENV)/bin/coverage report && exit $$failed

lint: $(TEST_EXTRAS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell
	$(PY) tools/check_vocabulary.py
	$(PY) tools/unasync.py --check
	$(PY) tools/vendor_console.py --check

format: $(STAMPS)/dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(STAMPS)/docs
	$(VENV)/bin/mkdocs build --strict

# Not a part of CI, because it needs the internet and the other sites. The paths in 404.html are those of a server.
links: docs $(STAMPS)/links
	@build/links/bin/linkchecker --check-extern --no-status --no-warnings --ignore-url '/404\.html$$' site

# The documentation of this checkout and of all releases, with a selector, as the workflow publishes it.
site: $(STAMPS)/docs
	@$(PY) tools/build_site.py

bench: $(STAMPS)/dev compiled
	@$(PY) -m bench.run $(ARGS)

bench-clients: $(STAMPS)/dev compiled
	@$(PY) -m bench.clients $(ARGS)

bench-staged: $(STAMPS)/dev compiled
	@$(PY) -m bench.staged $(ARGS)

bench-scale: $(STAMPS)/dev compiled
	@$(PY) -m bench.scale $(ARGS)

# Fails if a message costs more processor time than in bench/baseline.json. ARGS=--renew replaces that.
bench-check: $(STAMPS)/dev compiled
	@$(PY) -m bench.check $(ARGS)

# Faults in a cluster of three nodes over PostgreSQL, in pieces: ARGS="owner --rounds 20", ARGS=report.
bench-cluster: $(STAMPS)/dev $(STAMPS)/cluster compiled
	@$(PY) -m bench.cluster $(ARGS)

# Long proofs, in pieces of at most 25 minutes whose counts add up per commit: ARGS="power --minutes 25", ARGS=report.
proof: $(STAMPS)/dev $(STAMPS)/segments compiled
	@$(PY) -m bench.proof $(ARGS)

# Pipeline demo: a shop's messages over both protocols, a Spark pipeline that archives and counts them, and kill -9 of the
# broker and the pipeline in between. Uses compiled modules if they exist, but does not build them.
demo: $(STAMPS)/core $(STAMPS)/segments $(STAMPS)/demo
	@$(PY) examples/demo_pipeline.py

# Durability demo: publish, kill -9, restart; no confirmed message is lost.
demo-kill: $(STAMPS)/core $(STAMPS)/demo
	@$(PY) examples/demo.py

# Cluster demo: three nodes on PostgreSQL with a standby; a node is killed, then the primary.
cluster-demo: $(STAMPS)/core $(STAMPS)/cluster $(STAMPS)/demo
	@$(PY) examples/demo_cluster.py

# Write the source archive and the wheels to dist/. PYTHONS names the interpreters to compile for, by default one of each
# supported version, in PATH or of pyenv; each takes a few minutes.
wheels: $(STAMPS)/build
	@$(PY) tools/build_wheels.py $(PYTHONS)

# Write a Debian package for this machine's own Python to dist/, from a wheel that `make wheels` has written.
deb: $(STAMPS)/venv
	@$(PY) -m tools.build_deb $(ARGS)

# Optional: tests of this data source are skipped without it.
jar:
	@command -v mvn >/dev/null || { echo "make jar needs Maven and Java 17 (Debian: apt install maven default-jdk-headless)" >&2; exit 1; }
	@mvn -q -B -f jvm/pom.xml package
	@ls build/jvm/leveret-spark.jar

# Pin the requirements of pyproject.toml and requirements/*.in, with hashes.
lock: $(STAMPS)/dev
	$(VENV)/bin/pip-compile -q --strip-extras --no-emit-find-links --no-emit-index-url --generate-hashes --allow-unsafe --pip-args='--only-binary google-re2' \
		-o requirements/core.txt pyproject.toml
	for group in segments management websocket payloads oauth otel cluster dev build demo docs links frameworks airflow objects proton spark; do \
		$(VENV)/bin/pip-compile -q --strip-extras --no-emit-find-links --no-emit-index-url --generate-hashes --allow-unsafe \
			-o requirements/$$group.txt requirements/$$group.in || exit 1; done

clean:
	rm -rf build dist site $(STAMPS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
