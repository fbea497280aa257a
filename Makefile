# Lowtide: `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
INSTALLED := $(VENV)/.installed
ADDRESS ?= 127.0.0.1:9092
PROCESSES ?= 1
ARGS ?=
SEEDS ?= 200
PYTHONS ?= 3.11 3.12 3.13 3.14
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: help run test coverage test-all test-ci test-pure test-pythons check fmt lint types layers unit sim model chaos storm campaign mutants plants sanitize power-cuts clients interop bench microbench path demo demo-pipeline demo-table demo-erase docs wheels licences test-wheel image-wheels up down kcat etcd java chromium clean

help: ## explain every target
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# What a broker runs on. Nothing else installs Lowtide itself: pip would take $(BIN)/lowtide away meanwhile, under the hands that use it.
$(RUNS): pyproject.toml constraints.txt hatch_build.py $(wildcard protocol/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Lowtide needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Lowtide into $(VENV)"
	@$(PIP) --editable .
	@$(BIN)/python -c 'from lowtide.protocol.native import why_plain; why_plain() and print("no compiler: Python walks over records, more slowly; with gcc and Python'"'"'s headers (Debian: gcc python3-dev), make clean and install again")'
	@touch $@

# $(call packages,names): the packages of extras and groups of pyproject.toml, without Lowtide.
define packages
	@$(BIN)/python -c 'import pathlib, sys, tomllib; file = tomllib.loads(pathlib.Path("pyproject.toml").read_text()); named = file["project"]["optional-dependencies"] | file["dependency-groups"]; print(*(each for name in sys.argv[1:] for each in named[name]), sep="\n")' $(1) > $@-packages.txt
	@$(PIP) --requirement $@-packages.txt
	@touch $@
endef

$(INSTALLED): $(RUNS)
	@echo "installing what builds and tests Lowtide into $(VENV)"
	$(call packages,dev demo etcd)

$(INSTALLED)-pipeline: $(INSTALLED)
	@echo "installing PySpark and PyIceberg into $(VENV)"
	$(call packages,pipeline table readers)

$(INSTALLED)-browser: $(INSTALLED)
	$(call packages,browser)

$(INSTALLED)-kubernetes: $(INSTALLED)
	$(call packages,kubernetes)

$(INSTALLED)-power: $(INSTALLED)
	$(call packages,power)

$(INSTALLED)-coverage: $(INSTALLED)
	$(call packages,coverage)

$(INSTALLED)-docs: $(INSTALLED)
	$(call packages,docs)

$(INSTALLED)-packaging: $(INSTALLED)
	$(call packages,packaging)

run: $(RUNS) ## start a broker on 127.0.0.1:9092, with its data in ./data; PROCESSES=4 starts four (docs/processes.md)
	@exec $(BIN)/lowtide serve --processes $(PROCESSES) --set listeners=PLAINTEXT://$(ADDRESS)

# $(call needs,program,Debian's package): CI installs it, since CI runs everything. Elsewhere system packages are for their owner to install.
ifdef CI
define needs
	@if ! command -v $(1) >/dev/null; then \
	  sudo=; if [ "$$(id -u)" != 0 ]; then sudo='sudo -n'; fi; \
	  if $$sudo apt-get update -qq >/dev/null && $$sudo apt-get install -qq -y $(2) >/dev/null; then echo "installed $(1)"; \
	  else echo "$(1) is missing and could not be installed: CI runs everything that was asked for"; exit 1; fi; \
	fi
endef
else
define needs
	@command -v $(1) >/dev/null || echo "$(1) is missing, what needs it is skipped (Debian: apt-get install $(2))"
endef
endif

kcat: # a client in C
	$(call needs,kcat,kcat)

etcd: # the metadata store of clusters; Debian's package leaves a server running
	$(call needs,etcd,etcd-server)
	$(call needs,etcdctl,etcd-client)

chromium: # visits the console
	$(call needs,chromium,chromium)

java: # Spark runs on it
	$(call needs,java,openjdk-17-jre-headless)

# Tests run in WORKERS processes, a file at a time, in random order: ARGS=--randomly-seed=7 repeats one.
# FEW_*: how much make test draws, simulates and kills; test-ci goes on with the seeds that follow.
WORKERS ?= 4
BYTECODE := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX='$(CURDIR)/build/bytecode'
PYTEST := $(BYTECODE) $(BIN)/pytest -q
SPREAD := $(PYTEST) -n $(WORKERS) --dist=loadfile --no-loadscope-reorder
FEW := EXAMPLES_PERCENT=15 ERASING_SEEDS=2 ERASURES_SEEDS=3 RESTORE_SEEDS=5 ROUNDS=2 SECONDS_OF_TRANSFER=2 FRAMES=2000 SEEDS=12 CLUSTER_SEEDS=3
MORE := FIRST_SEED=12 SEEDS=40 FIRST_CLUSTER_SEED=3 CLUSTER_SEEDS=22 RESTORE_SEEDS=15
SUITE := tests/unit tests/wire tests/model tests/sim tests/clients tests/chaos tests/pipeline
# WAITING: files of these rooms in which something waits; asyncio's debug mode changes nothing for the others. WALKING: what uses the compiled module.
WAITING = $(shell grep -rlE --include='test_*.py' 'async def' $(addprefix tests/unit/,broker/network broker/lifecycle broker/partitions metadata runtime))
WALKING := $(addprefix tests/unit/,protocol storage/compaction storage/directory storage/erasures storage/log broker/partitions broker/lifecycle/test_start_lines.py) tests/wire \
  $(addprefix tests/clients/test_,produce_and_consume.py delete_records.py erase.py transactions.py)

# pytest rewrites a test file when it imports it first. In a fresh tree two processes do that, instead of every worker for all files.
COMPILED := build/bytecode/.compiled
$(COMPILED): | $(INSTALLED)-pipeline
	@mkdir -p $(@D)
	@$(PYTEST) --collect-only -qq tests/unit/broker >/dev/null & \
	  $(PYTEST) --collect-only -qq --ignore=tests/unit/broker $(SUITE) >/dev/null || true; wait; touch $@

test: $(COMPILED) kcat etcd java ## some of every kind of test, in about five minutes on two cores: docs/own-tests.md
	@$(FEW) $(SPREAD) -m "not slow" $(SUITE) $(ARGS)

test-ci: $(INSTALLED)-pipeline kcat etcd java ## what CI adds to test: slow tests, all drawn examples, more seeds, asyncio's debug mode, no compiled code
	@$(MORE) $(SPREAD) -m "(slow or seeds or hypothesis) and not slowest" $(SUITE) $(ARGS)
	@$(FEW) PYTHONASYNCIODEBUG=1 $(SPREAD) -m "not slow" $(WAITING) $(ARGS)
	@$(FEW) LOWTIDE_PURE=1 $(SPREAD) -m "not slow" $(WALKING) $(ARGS)

test-all: $(INSTALLED)-pipeline kcat etcd java ## all tests except those that need Maven, Go or root, for an hour
	@SEEDS=200 CLUSTER_SEEDS=200 $(SPREAD) $(SUITE) $(ARGS)
	@$(FEW) PYTHONASYNCIODEBUG=1 $(SPREAD) -m "not slow" tests/unit/broker tests/unit/metadata tests/unit/runtime tests/sim $(ARGS)
	@$(MAKE) --no-print-directory test-pure

test-pure: $(INSTALLED) kcat ## unit, wire and client tests without compiled code
	@$(FEW) LOWTIDE_PURE=1 $(SPREAD) -m "not slow" tests/unit tests/wire tests/clients $(ARGS)

test-pythons: ## unit and wire tests on several versions of Python, each in an environment of its own: PYTHONS="3.12 3.13"
	@failed=; for version in $(PYTHONS); do \
	  $(MAKE) --no-print-directory unit PYTHON=python$$version VENV=build/pythons/$$version || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed or missing:$$failed"; exit 1; }

check: $(INSTALLED) ## check format, lint, types and layers
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted: make fmt"; exit 1; }
	@$(MAKE) --no-print-directory lint types layers

fmt: $(INSTALLED) ## format the code
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

lint: $(INSTALLED) ## ruff
	@$(BIN)/ruff check --quiet .

types: $(INSTALLED) ## mypy, strict for the product and less so for tests: pyproject.toml
	@$(BIN)/mypy

layers: $(INSTALLED) ## imports point one way
	@$(BIN)/lint-imports --no-cache >/dev/null || { $(BIN)/lint-imports --no-cache; exit 1; }

unit: $(INSTALLED) ## unit and wire tests only
	@$(FEW) $(SPREAD) -m "not slow" tests/unit tests/wire $(ARGS)

coverage: $(INSTALLED)-coverage ## lines and branches of each room that unit, wire and model tests run, into docs/lab/coverage.md
	@rm -f build/coverage*
	-@$(FEW) COVERAGE_FILE=build/coverage $(BYTECODE) $(BIN)/coverage run -m pytest -n $(WORKERS) --dist=loadfile -q -m "not slow" tests/unit tests/wire tests/model $(ARGS)
	@COVERAGE_FILE=build/coverage $(BIN)/coverage combine --quiet
	@COVERAGE_FILE=build/coverage $(BIN)/coverage json --quiet -o build/coverage.json
	@$(BIN)/python -m tests.coverage_page build/coverage.json

sim: $(INSTALLED) ## simulated brokers and clusters: SEEDS=2000 runs that many of each, SEED=7 replays one
	@SEEDS=$(SEEDS) CLUSTER_SEEDS=20 $(BIN)/pytest -q tests/sim
	@test -n "$${SEED:-}" || $(BIN)/python -m lowtide.simulation.cluster_search --seeds $(SEEDS) --first $${FIRST_SEED:-0}

model: $(INSTALLED) ## search every order of events around deletes; FAULTS=2 searches further, for minutes
	@FAULTS=$${FAULTS:-1} $(BIN)/pytest -q -s -o faulthandler_timeout=20000 tests/model

chaos: $(INSTALLED) ## real brokers, killed under load: ROUNDS=20
	@$(BIN)/pytest -q tests/chaos

storm: $(INSTALLED) ## a million damaged frames against a real broker: FRAMES=1000000 SEED=7
	@FRAMES=$${FRAMES:-1000000} $(BIN)/pytest -q -s -o faulthandler_timeout=20000 tests/chaos/test_frame_storm.py

sanitize: $(INSTALLED) ## run the compiled code over damaged input, with gcc's sanitizers: SECONDS_LONG=600 SEED=7
	@mkdir -p build
	@for program in fuzz_walk fuzz_produce fuzz_crc32c; do \
	  $${CC:-cc} -std=c11 -O1 -g -Wall -Wextra -fsanitize=address,undefined -fno-sanitize-recover=all -Iprotocol/native -Itests/native \
	    tests/native/$$program.c $(addprefix protocol/native/,records.c rows.c keys.c head.c produce.c crc32c.c) -o build/$$program && \
	  build/$$program $${SECONDS_LONG:-60} $${SEED:-1} || exit 1; \
	done
	@$(BIN)/python -m tests.native.fuzz_codec $${SECONDS_LONG:-60} $${SEED:-1}

power-cuts: $(INSTALLED)-power ## cut the power of a disk below real file systems; needs root, libfuse3 and xfsprogs: CUTS=500 SEED=7
	@$(BIN)/pytest -q -s -o faulthandler_timeout=20000 -m power tests/power

soak: $(INSTALLED)-pipeline etcd java ## three brokers with everything on, in pieces that continue: HOURS=8 (docs/own-tests.md)
	@$(BIN)/python -m tests.soak --minutes $$(($${HOURS:-8} * 60)) $(ARGS)

campaign: $(INSTALLED) ## search until stopped, or with ARGS=--until-current until every row of docs/lab/evidence.md has what a release needs (docs/own-tests.md)
	@$(BIN)/python -m tests.campaign $(ARGS)

mutants: $(INSTALLED) ## find changes of the code that no unit test notices, at the lowest priority: ARGS='--groups purgatory' (docs/own-tests.md)
	@$(BIN)/python -m tests.mutants $(ARGS)

plants: $(INSTALLED) ## count the seeds until planted bugs are found, at the lowest priority, and add them to docs/lab/evidence.md: FIRST_SEEDS=100000,200000
	@PLANT_FIRST_SEEDS=$${FIRST_SEEDS:-100000,200000,300000} nice -n 19 $(BIN)/pytest -q -n0 -o faulthandler_timeout=0 -k "found or planted" \
	  tests/sim/test_planted_*.py tests/sim/test_cluster_planted_*.py tests/sim/test_moves_between_directories.py
	@$(BIN)/python -c 'from tests.campaign.evidence import write_page; write_page()'

clients: $(INSTALLED) kcat ## kcat and the Python clients against a real broker
	@$(BIN)/pytest -q tests/clients

interop: $(INSTALLED)-pipeline $(INSTALLED)-browser $(INSTALLED)-kubernetes chromium ## Kafka's tools, its Java client, franz-go, kafkajs, and a browser at the console: needs a JDK 17, Maven, Go and npm
	@$(BIN)/pytest -q -m interop tests/interop

bench: $(INSTALLED) kcat ## measure Lowtide and other brokers side by side: ARGS='--help' (docs/performance.md)
	@$(BIN)/python -m bench $(ARGS)

microbench: $(INSTALLED) ## measure each step of the hot paths
	@for bench in bench/bench_*.py; do $(BIN)/python $$bench; done

path: $(INSTALLED) ## print the path of a request through a broker: files, lines, calls; ARGS=delete prints each call
	@LOWTIDE_PURE=1 $(BIN)/python -m bench.request_path $(ARGS)
	@LOWTIDE_PURE= $(BIN)/python -m bench.request_path $(ARGS)

demo: $(INSTALLED) kcat ## load 336,776 flights, delete some, kill the broker, and read again
	@$(BIN)/python demo/flights.py

demo-pipeline: $(INSTALLED)-pipeline java ## stream a year of flights through a topic from which Spark deletes what it has read, and draw a picture (docs/pipeline.md)
	@$(BIN)/python demo/pipeline.py

demo-table: $(INSTALLED)-pipeline java ## stream a year of flights into an Iceberg table, kill the job, and forget one aircraft in both (docs/tables.md)
	@$(BIN)/python demo/flights_table.py

demo-erase: $(INSTALLED) ## forget one of ten thousand people while records are written and a broker is killed
	@$(BIN)/python demo/erase_person.py

docs: $(INSTALLED)-docs ## build the pages of docs/ as a site in build/site; fails at a broken link
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }

wheels: $(INSTALLED)-packaging ## build a release in dist/, twice, and compare: wheels for x86-64 and aarch64, sources, SBOM (docs/releasing.md)
	@$(BIN)/python packaging/wheels.py
	@$(BIN)/python packaging/licences.py bill dist
	@$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	@cd dist && sha256sum -- * >SHA256SUMS && cat SHA256SUMS

licences: $(INSTALLED)-pipeline $(INSTALLED)-packaging ## list the licences of the packages that Lowtide needs, in docs/licences.md
	@$(BIN)/python packaging/licences.py page >docs/licences.md

test-wheel: ## install the wheel of dist/ in a bare environment of each Python, and try the quick start: PYTHONS="3.12 3.13"
	@$(PYTHON) packaging/try_wheel.py dist $(PYTHONS)

image-wheels: $(INSTALLED) ## download the packages of an image that is built without a network (docs/compose.md)
	@rm -rf build/wheels
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --wheel-dir build/wheels '.[etcd]' hatchling
	@rm build/wheels/lowtide-*.whl

# With SECURE=1 the second file is laid over the first, and CLIENT has the files of an administrator in the end.
SECURE ?=
CLIENT := build/secure
COMPOSED = $(COMPOSE) $(if $(SECURE),--file docker-compose.yml --file docker-compose.secure.yml)
PROJECT = $(or $(COMPOSE_PROJECT_NAME),$(shell basename "$(CURDIR)" | tr A-Z a-z | tr -cd 'a-z0-9_-'))
IN_ETCD := --metadata=etcd://etcd:2379 --metadata-ca=/etc/lowtide/ca.pem --metadata-cert=/etc/lowtide/metadata.pem --metadata-key=/etc/lowtide/metadata.pem
AS_TAR := 'import sys, tarfile; tarfile.open(fileobj=sys.stdout.buffer, mode="w|").add("/etc/lowtide/client", ".")'
TELL_PLAIN := 'from lowtide.protocol.native import why_plain; why_plain() and print("the image lacks the compiled module, so small requests take twice the CPU: set BUILD_IMAGE to one with a C compiler and headers of Python")'
export CLIENT_PATH = $(CURDIR)/$(CLIENT)

# $(call healthy,services): wait until they are, two minutes at most.
define healthy
	@until=$$((SECONDS + 120)); for service in $(1); do \
	  while health=$$(docker inspect --format '{{.State.Health.Status}}' $$($(COMPOSED) ps -q $$service)) && [ "$$health" != healthy ]; do \
	    if [ $$SECONDS -gt $$until ]; then echo "$$service is $$health:"; $(COMPOSED) logs --tail 20 $$service; exit 1; fi; \
	    sleep 0.5; \
	  done; \
	done
endef

# Over the volumes of a secure cluster an open one would serve every record without a login.
define not_secured
	@if [ -z "$${OPEN:-}" ] && [ -n "$$(docker volume ls --quiet --filter name=^$(PROJECT)_secure$$)" ]; then \
	  echo "these volumes belong to a cluster with logins: make up SECURE=1, or make up OPEN=1 to serve its records to every client without one"; exit 1; \
	fi
endef

up: ## run an etcd, three brokers and a console in containers, clients at 127.0.0.1:9092; SECURE=1 adds TLS, logins and access rules (docs/compose.md)
ifndef SECURE
	$(not_secured)
endif
	@$(COMPOSED) build broker-1
ifdef SECURE
	@$(COMPOSED) run --rm --no-deps -T certificates >/dev/null
	@$(COMPOSED) up -d --no-build etcd
	$(call healthy,etcd)
	@for user in admin broker; do \
	  $(COMPOSED) run --rm --no-deps -T certificates users add $$user --password-file=/etc/lowtide/$$user.password $(IN_ETCD); \
	done
endif
	@$(COMPOSED) up -d --no-build etcd broker-1 broker-2 broker-3 console
	$(call healthy,etcd broker-1 broker-2 broker-3 console)
ifdef SECURE
	@mkdir -p $(CLIENT) && chmod 700 $(CLIENT)
	@$(COMPOSED) run --rm --no-deps -T --entrypoint python3 certificates -c $(AS_TAR) | tar -C $(CLIENT) --no-same-owner -xf -
	@echo "user admin may do everything: kcat -F $(CLIENT)/admin.conf -L"
endif
	@docker exec $$($(COMPOSED) ps -q broker-1) python3 -c $(TELL_PLAIN)
	@echo "three brokers at 127.0.0.1:$${PORT_1:-9092}, 127.0.0.1:$${PORT_2:-9093} and 127.0.0.1:$${PORT_3:-9094}"
	@echo "the console is at $$($(COMPOSED) logs console 2>/dev/null | sed -n 's/.*The console is at //p' | tail -n 1)$(if $(SECURE), (log in as a user of the cluster))"
	@echo "metrics and the brokers' own consoles, with a login, at $(if $(SECURE),https,http)://127.0.0.1:$${HTTP_PORT_1:-9644}/console/ and /metrics: docs/compose.md"

observe: ## run Prometheus and Grafana beside `make up`, at 127.0.0.1:9090 and :3000; give SECURE=1 as for `make up`
	@$(COMPOSED) --profile observe up -d --no-build observer prometheus grafana

down: ## stop them and keep their data (ARGS=--volumes removes it); give SECURE=1 as for `make up`
	@$(COMPOSED) --profile observe down $(ARGS)

clean: ## remove what was built and installed, but not ./data
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
