# Lowtide: `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CODE := admin broker cli metadata pipeline protocol replication runtime simulation storage testing
CHECKED := $(CODE) demo tests
ADDRESS ?= 127.0.0.1:9092
ARGS ?=
SEEDS ?= 200
PYTHONS ?= 3.11 3.12 3.13 3.14
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: help run test test-all test-rest test-pure test-pythons check fmt lint types layers unit sim model chaos storm campaign sanitize clients interop bench microbench path demo demo-pipeline docs wheel wheels up down kcat etcd java clean

help: ## explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml constraints.txt hatch_build.py $(wildcard protocol/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Lowtide needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Lowtide and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,demo,etcd]'
	@touch $@

$(INSTALLED)-pipeline: $(INSTALLED)
	@echo "installing PySpark into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[pipeline]'
	@touch $@

$(INSTALLED)-docs: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

$(INSTALLED)-packaging: $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[packaging]'
	@touch $@

run: $(INSTALLED) ## start a broker on 127.0.0.1:9092, with its data in ./data
	@exec $(BIN)/lowtide serve --set listeners=PLAINTEXT://$(ADDRESS)

# $(call install,program,Debian's package,package elsewhere): by the system's package manager, where that is allowed; in CI it must be there.
define install
	@if ! command -v $(1) >/dev/null; then \
	  sudo=; if [ "$$(id -u)" != 0 ]; then sudo='sudo -n'; fi; \
	  if command -v apt-get >/dev/null && { $$sudo apt-get update -qq && $$sudo apt-get install -qq -y $(2); } >/dev/null 2>&1; then echo "installed $(1)"; \
	  elif command -v dnf >/dev/null && $$sudo dnf install -q -y $(3) >/dev/null 2>&1; then echo "installed $(1)"; \
	  elif command -v brew >/dev/null && brew install --quiet $(3) >/dev/null 2>&1; then echo "installed $(1)"; \
	  elif [ -n "$${CI:-}" ]; then echo "$(1) is missing and could not be installed: CI runs everything that was asked for"; exit 1; \
	  else echo "$(1) is missing and could not be installed: its tests are skipped"; fi; \
	fi
endef

kcat: # installed where it is missing
	$(call install,kcat,kcat,kcat)

etcd: # installed where it is missing, in CI only: elsewhere its package would leave a server running
ifdef CI
	$(call install,etcd,etcd-server,etcd)
	$(call install,etcdctl,etcd-client,etcd)
else
	@command -v etcd >/dev/null || echo "etcd is missing: its tests are skipped"
endif

java: # installed where it is missing: Spark runs on it
	$(call install,java,openjdk-17-jre-headless,java-17-openjdk-headless)

test: $(INSTALLED)-pipeline kcat etcd java ## something of every kind of test, in some six minutes on two cores: docs/testing.md
	@$(BIN)/python -m tests.suite test $(ARGS)

test-all: $(INSTALLED)-pipeline kcat etcd java ## all tests but those that need Maven or Go
	@$(BIN)/python -m tests.suite all $(ARGS)

test-rest: $(INSTALLED)-pipeline kcat etcd java ## what test-all adds to test
	@$(BIN)/python -m tests.suite rest $(ARGS)

test-pure: $(INSTALLED) kcat ## unit, wire and client tests without the compiled walk over records
	@$(BIN)/python -m tests.suite pure $(ARGS)

test-pythons: $(INSTALLED) ## unit and wire tests on Python 3.11 to 3.14, as far as they can be had: PYTHONS="3.12 3.13"
	@$(BIN)/python -m tests.suite.pythons $(PYTHONS)

check: $(INSTALLED) ## check format, lint, types and layers
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted: make fmt"; exit 1; }
	@$(MAKE) --no-print-directory lint types layers

fmt: $(INSTALLED) ## format the code
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

lint: $(INSTALLED) ## ruff
	@$(BIN)/ruff check --quiet .

types: $(INSTALLED) ## mypy --strict
	@MYPYPATH=src $(BIN)/mypy src/lowtide

layers: $(INSTALLED) ## imports point one way
	@$(BIN)/lint-imports --no-cache >/dev/null || { $(BIN)/lint-imports --no-cache; exit 1; }

unit: $(INSTALLED) ## unit and wire tests only
	@$(BIN)/pytest -q tests/unit tests/wire

sim: $(INSTALLED) ## simulated brokers and clusters: SEEDS=2000 runs so many of each, SEED=7 replays one
	@SEEDS=$(SEEDS) CLUSTER_SEEDS=20 $(BIN)/pytest -q tests/sim
	@test -n "$${SEED:-}" || $(BIN)/python -m lowtide.simulation.cluster_search --seeds $(SEEDS) --first $${FIRST_SEED:-0}

model: $(INSTALLED) ## every order of events around deletes, for minutes: FAULTS=2 searches further
	@FAULTS=$${FAULTS:-1} $(BIN)/pytest -q -s -o faulthandler_timeout=20000 tests/model

chaos: $(INSTALLED) ## real brokers, killed under load: ROUNDS=20
	@$(BIN)/pytest -q tests/chaos

storm: $(INSTALLED) ## a million damaged frames against a real broker: FRAMES=1000000 SEED=7
	@FRAMES=$${FRAMES:-1000000} $(BIN)/pytest -q -s -o faulthandler_timeout=20000 tests/chaos/test_frame_storm.py

sanitize: ## the compiled walk over damaged records, with gcc's sanitizers: SECONDS_LONG=600 SEED=7
	@mkdir -p build
	@$${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all -Iprotocol/native \
	  tests/native/fuzz_walk.c $(addprefix protocol/native/,records.c rows.c keys.c) -o build/fuzz_walk
	@build/fuzz_walk $${SECONDS_LONG:-60} $${SEED:-1}

campaign: $(INSTALLED) ## search on and on with simulators, kills and damaged frames, at the lowest priority: ARGS=--totals, docs/testing.md
	@$(BIN)/python -m tests.campaign $(ARGS)

clients: $(INSTALLED) kcat ## kcat and the Python clients against a real broker
	@$(BIN)/pytest -q tests/clients

interop: $(INSTALLED)-pipeline ## Kafka's tools, its Java client and franz-go against a broker, files both ways: needs a JDK 17, Maven and Go
	@$(BIN)/pytest -q -m interop tests/interop

bench: $(INSTALLED) kcat ## Lowtide and other brokers side by side: ARGS='--help', docs/performance.md
	@$(BIN)/python -m bench $(ARGS)

microbench: $(INSTALLED) ## what the steps of the hot paths cost
	@for bench in bench/bench_*.py; do $(BIN)/python $$bench; done

path: $(INSTALLED) ## which way a request takes through a broker: files, lines, calls; ARGS=delete prints each call
	@$(BIN)/python -m bench.request_path $(ARGS)

demo: $(INSTALLED) kcat ## load 336,776 flights, delete some, kill the broker, and look again
	@$(BIN)/python demo/flights.py

demo-pipeline: $(INSTALLED)-pipeline java ## a year of flights through a topic that Spark empties behind itself, with a picture: docs/pipeline.md
	@$(BIN)/python demo/pipeline.py

docs: $(INSTALLED)-docs ## the pages of docs/ as a site in build/site; fails at a broken link
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }

wheel: $(INSTALLED)-packaging ## dist/: a manylinux wheel for Python 3.11 and later, and the source distribution it is built from
	@rm -rf dist build/wheel
	@mkdir -p build
	@LOWTIDE_PURE=0 $(BIN)/python -m build --no-isolation --outdir build/wheel . >build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl >>build/wheel.log 2>&1 || { cat build/wheel.log; exit 1; }
	@mv build/wheel/*.tar.gz dist
	@ls dist

wheels: $(INSTALLED) ## for an image that is built without a network: docs/compose.md
	@rm -rf build/wheels
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --wheel-dir build/wheels '.[etcd]' hatchling
	@rm build/wheels/lowtide-*.whl

up: ## an etcd and three brokers in containers, clients at 127.0.0.1:9092: docs/compose.md
	@$(COMPOSE) build broker-1
	@$(COMPOSE) up -d --no-build
	@until=$$((SECONDS + 120)); for service in etcd broker-1 broker-2 broker-3; do \
	  while health=$$(docker inspect --format '{{.State.Health.Status}}' $$($(COMPOSE) ps -q $$service)) && [ "$$health" != healthy ]; do \
	    if [ $$SECONDS -gt $$until ]; then echo "$$service is $$health:"; $(COMPOSE) logs --tail 20 $$service; exit 1; fi; \
	    sleep 0.5; \
	  done; \
	done
	@echo "three brokers at 127.0.0.1:$${PORT_1:-9092}, 127.0.0.1:$${PORT_2:-9093} and 127.0.0.1:$${PORT_3:-9094}"

down: ## stop them; their data stay in volumes (make down ARGS=--volumes removes them)
	@$(COMPOSE) down $(ARGS)

clean: ## remove what was built and installed, not ./data
	@rm -rf $(VENV) build dist protocol/native/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
