# Everything here starts from a machine that has only Python 3.11, pip and make: a target that needs the environment
# makes it first. `uv` comes by pip into .tools (which works on a Python that its distribution marks as managed), the
# environment goes into .venv, and every package is checked against the hashes in requirements/.

PYTHON ?= $(shell command -v python3.11 || command -v python3)

UV := .tools/bin/uv
BIN := .venv/bin
TOOLS_STAMP := .tools/.installed
VENV_STAMP := .venv/.installed
TESTS_STAMP := .venv/.tests-compiled
CLASSES_STAMP := .venv/.class-archive
COMPILED := hatch_build.py $(wildcard shards/compiled/*.c shards/compiled/*.h)

# One Python, the one found above: uv must not download another.
export UV_PYTHON_DOWNLOADS := never

# Servers, brokers and commands are started by the hundred: compiling all modules again would triple the time of each start.
unexport PYTHONDONTWRITEBYTECODE

# Trust what the machine trusts (as its pip does): a company's own certificate authority is in the system's store.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS := 1
endif

.DEFAULT_GOAL := help
.PHONY: help setup clients peers test test-slow compile-tests class-archive test-all wheel crash torture fuzz sanitize lint format screenshots demo demo-cluster bench bench-compare bench-quick bench-scale lock lock-clients image clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV_STAMP) ## make .venv from requirements/dev.lock (nothing happens when it is up to date)
	@:

clients: $(VENV_STAMP) ## install the npm package that tests use as an MQTT client; where that fails they are skipped
	@$(BIN)/python -m tests.mqtt.clients.install

peers: $(VENV_STAMP) ## install mosquitto, NATS, PostgreSQL, Redis, SeaweedFS, Chromium, strace and the like, which tests use; where that fails those are skipped
	@scripts/install-peers
	@$(UV) pip install --quiet --target .peers --python $(BIN)/python --require-hashes -r requirements/peers.lock \
		|| echo 'peers: SeaweedFS, NATS and amqtt could not be installed: what needs them is skipped' >&2

# A test that neither ends nor notices that its time is over takes its process along, with the stacks of all threads.
BOUNDED := -o faulthandler_timeout=1000 -o faulthandler_exit_on_timeout=true

# Several at a time: most of their time they wait for disks, servers and clocks (tests/README.md).
PYTEST = $(BIN)/python -m pytest -n $(or $(JOBS),auto) $(BOUNDED)

test: $(TESTS_STAMP) clients ## run the quick tests, in minutes (TESTS="path or options" narrows them, JOBS= at a time)
	@$(PYTEST) -m "(not slow or smoke) and not long and not wheel" --hypothesis-profile=quick $(TESTS)

# `make test` tried properties with few examples; here they are tried again with many.
test-slow: $(TESTS_STAMP) $(CLASSES_STAMP) clients ## run what `make test` leaves out, but `make crash` and `make wheel` (TESTS=, JOBS=)
	@$(PYTEST) -m "(slow and not smoke or hypothesis) and not long and not wheel" $(TESTS)

compile-tests: $(TESTS_STAMP) ## compile the tests, which the first run of any of them does otherwise
	@:

class-archive: $(CLASSES_STAMP) ## make the archive of classes that tests with Java start with, half a minute of a processor
	@:

test-all: $(TESTS_STAMP) $(CLASSES_STAMP) clients ## run the tests of both, in one go (TESTS=, JOBS=)
	@$(PYTEST) $(TESTS)

wheel: $(VENV_STAMP) ## run README and docs in full, word for word, on an installed wheel (minutes)
	@$(BIN)/python -m pytest --own-interpreters -rs -m wheel tests/documents $(TESTS)

crash: $(VENV_STAMP) ## run the long crash and fault tests as well (minutes)
	@$(BIN)/python -m pytest --own-interpreters -m long $(TESTS)

torture: $(VENV_STAMP) ## break a real server and a simulated machine in every way for MINUTES=10, by SEED=, in some PHASES=
	@$(BIN)/python -m tests.torture $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(PHASES),--phases $(PHASES)) $(if $(TURN),--turn $(TURN))

fuzz: $(VENV_STAMP) ## fuzz all that decodes, by coverage (MINUTES=10 for all targets, SEED=, TARGET=); ends with 1 if it found something
	@$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(TARGET:%=--target %)

sanitize: $(VENV_STAMP) ## run the properties of the compiled loops under the sanitizers of addresses and undefined behaviour (EXAMPLES=)
	@$(BIN)/python -m tests.sanitized_loops $(if $(EXAMPLES),--examples $(EXAMPLES))

lint: $(VENV_STAMP) ## check style, formatting, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(VENV_STAMP) ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

screenshots: $(VENV_STAMP) ## make the pictures in docs/images again: the console, with Chromium (make peers), and the plot
	@SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/console/test_screenshots.py
	@PICTURES=docs/images $(BIN)/python -m pytest tests/spark/test_analytics.py

demo: $(VENV_STAMP) ## live telemetry through three MQTT brokers, two SIGKILLs; says whether every promise held (ARGS="--json")
	@$(BIN)/python -m demo $(ARGS)

demo-cluster: $(VENV_STAMP) ## three servers on SeaweedFS (make peers), three brokers; kills, a cut, an empty disk (ARGS="--json")
	@$(BIN)/python -m demo.cluster $(ARGS)

bench: $(VENV_STAMP) ## measure against the machine's limits and the peers that are installed (ARGS="--json FILE")
	@$(BIN)/python -m benchmarks $(ARGS)

bench-compare: $(VENV_STAMP) ## measure this state in turns with that of REV= (ROWS=, PAIRS=): ratios, and whether they prove anything
	@test -n "$(REV)" || { echo 'bench-compare: which state? REV=main, or a commit' >&2; exit 2; }
	@$(BIN)/python -m benchmarks.compare $(REV) $(if $(ROWS),--rows "$(ROWS)") $(if $(PAIRS),--pairs $(PAIRS)) $(ARGS)

bench-quick: $(VENV_STAMP) ## the same in a few minutes, with fewer repetitions and less data
	@$(BIN)/python -m benchmarks --quick $(ARGS)

bench-scale: $(VENV_STAMP) ## how cost grows with shards, connections and the like: laws and plots (MINUTES=20, ARGS="--most N --json FILE")
	@$(BIN)/python -m benchmarks.scale --plots docs/images $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

lock: $(TOOLS_STAMP) ## bring requirements/*.lock in line with pyproject.toml (UPGRADE=1 takes the newest versions)
	@set -e; \
	compile() { $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 $(if $(UPGRADE),--upgrade) "$$@" > /dev/null; }; \
	compile requirements/tools.in -o requirements/tools.lock; \
	compile requirements/build.in -o requirements/build.lock; \
	compile pyproject.toml -o requirements/base.lock; \
	compile pyproject.toml --extra server -o requirements/server.lock; \
	compile pyproject.toml --extra broker -o requirements/broker.lock; \
	compile pyproject.toml --extra server --extra sinks --extra logins -o requirements/image.lock; \
	compile pyproject.toml --extra dev -o requirements/dev.lock; \
	compile requirements/peers.in -o requirements/peers.lock
	@! grep -nE '(https?|file)://' requirements/*.lock || { echo 'lock: an address got into a lock file' >&2; exit 1; }

lock-clients: $(VENV_STAMP) ## bring the npm lock file in line with its package.json
	@$(BIN)/python -m tests.mqtt.clients.install --lock

image: ## build the container image of the server and the broker
	docker build --tag journal-engine .

clean: ## remove the environment, caches and everything else that can be made again
	rm -rf .tools .venv .peers .demo .bench .fuzz build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf tests/mqtt/clients/node_modules shards/compiled/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(TOOLS_STAMP): requirements/tools.lock
	@test -n "$(PYTHON)" || { echo 'setup: no python3.11 or python3 found; set PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'setup: $(PYTHON) is older than Python 3.11; set PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo 'setup: installing uv into .tools'
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target .tools \
		--require-hashes -r requirements/tools.lock
	@touch $@

# pyspark is published as source alone (450 MB): uv builds it, with the build back-end that build.lock names by its hash.
$(VENV_STAMP): $(TOOLS_STAMP) requirements/dev.lock requirements/build.lock pyproject.toml $(COMPILED)
	@echo 'setup: bringing .venv in line with requirements/dev.lock (the first time, Spark takes a minute or two)'
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	@$(UV) pip sync --quiet --compile-bytecode --require-hashes --build-constraints requirements/build.lock --python $(BIN)/python \
		requirements/dev.lock
	@$(UV) pip install --quiet --no-deps --no-build-isolation --reinstall --python $(BIN)/python --editable .
	@$(BIN)/python -c 'import shards.compiled._loops' 2>/dev/null || $(BIN)/python hatch_build.py
	@touch $@

# Once, in one process: several at a time would each compile all tests.
$(TESTS_STAMP): $(VENV_STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet > $@.log || { cat $@.log; exit 1; }
	@touch $@

$(CLASSES_STAMP): $(VENV_STAMP)
	@$(BIN)/python -m tests.spark.shared_archive
	@touch $@
