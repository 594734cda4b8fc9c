# make demo, test, lint, bench: each installs what it requires (.venv, packages, Java), once.
VENV   := .venv
# The packages in .venv: those of the demo alone, and those of all other targets (pyproject.toml's extras).
DEMO   := $(VENV)/.installed-demo
STAMP  := $(VENV)/.installed-all
PYTHON ?=
RUN    := sh tools/setup.sh run $(VENV)
NODE   := tests/proxy/official/node
# Input of the spell checker.
TEXTS  := spark_rocket jobs benchmarks tools docs tests Makefile mkdocs.yml $(wildcard *.md)
ARGS   ?=
# A test that hangs prints what each thread does and ends its process, which pytest replaces. The longest test takes two minutes.
HANGS  := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 2

.PHONY: help demo test unit live spark long prepare connect crash failover chaos chaos-sink cost fuzz lint verify protos dist matrix upgrade docs tables translated bench soak setup clean

help:
	@echo "make demo    send 336,776 flights through a topic and a streaming query: a table and a chart"
	@echo "make test    run the tests, of some only a sample (ARGS=... goes to pytest: make test ARGS='tests/store -x')"
	@echo "make unit    run only the tests within one process without sockets, in two minutes"
	@echo "make live    run only the tests with servers, clients and processes, and slow tests"
	@echo "make spark   run only the tests with a Spark session"
	@echo "make long    run the tests that make test skips or samples: a minute of both cores each"
	@echo "make connect run the Spark tests on Spark Connect"
	@echo "make crash   1,000 torn images and 50 kills under load, 15 minutes (TORN_IMAGES=... KILL_ROUNDS=...)"
	@echo "make failover 30 rounds: kill and isolate masters, slaves, name servers under load (FAILOVER_ROUNDS=...)"
	@echo "make chaos   100 consumers join and leave for a minute, brokers restart (PUSH_MEMBERS=... PUSH_SECONDS=...)"
	@echo "make chaos-sink 200 kills of tasks, commits, drivers, brokers, and 44 in Spark: sent = stored = distinct (SINK_KILLS=...),"
	@echo "             and 6,000 random histories of the sink in a cluster in memory (SINK_HISTORIES=..., SINK_SEED=...)"
	@echo "make cost    CPU and memory of hostile requests of every code, growth for hostile text, 20 minutes; writes docs/internals/request-costs.md"
	@echo "make fuzz    a million cases of invalid input for all decoders, two processes (FUZZ_CASES=...)"
	@echo "make verify  run all suites that make test skips; writes docs/reference/verification.md (ARGS=--short: 20 minutes)"
	@echo "make lint    run ruff, mypy --strict, import-linter, codespell"
	@echo "make protos  compile the descriptor set of the gRPC messages from their .proto"
	@echo "make dist    build the wheel and the sdist in dist/, check them, install each extra in an empty environment"
	@echo "make matrix  run the data source's tests with PySpark 4.0 to 4.3 and all installed Pythons (ARGS='--only 3.11-4.0')"
	@echo "make upgrade install the newest versions of all packages, list them in constraints.txt, run lint and tests"
	@echo "make docs    build the site in site/"
	@echo "make tables  write the tables of the reference pages, which the code declares, into the pages"
	@echo "make translated PAGES=... store that these Chinese pages are up to date; without PAGES list the outdated ones"
	@echo "make bench   run the benchmarks, each with its own ceiling (ARGS='--only spark.read')"
	@echo "make soak    a stream with 50,000 messages/s for ten minutes: its lag and memory (ARGS='--minutes 1')"
	@echo "make setup   install all packages in .venv; make demo installs fewer"
	@echo "make clean   remove all generated files and .venv"

demo: $(DEMO)
	@$(RUN) python -m jobs.demo $(ARGS)

# Three processes, because tests mostly wait for other processes; tests/conftest.py keeps some tests together.
test: prepare
	@$(RUN) python -m pytest -n 3 --dist loadfile $(HANGS) $(ARGS)

# The tiers, each alone; tests/kit/tiers.py assigns the tests to them.
unit: $(STAMP)
	@$(RUN) python -m pytest -n 2 --dist loadfile $(HANGS) -m "not live and not spark" $(ARGS)

live: prepare
	@$(RUN) python -m pytest -n 3 --dist loadfile $(HANGS) -m "live and not spark" $(ARGS)

spark: prepare
	@$(RUN) python -m pytest -n 2 --dist loadfile $(HANGS) -m spark $(ARGS)

# Requirements of the tests in addition to the packages: RocketMQ's Node.js client, a browser, nginx.
prepare: $(STAMP) $(NODE)/node_modules/.installed $(VENV)/.nginx

connect: export ON_CONNECT = 1
connect: $(STAMP)
	@$(RUN) python -m pytest tests/spark $(ARGS)

long: export LONG = 1
long: $(STAMP)
	@$(RUN) python -m pytest -m long $(ARGS)

crash: export TORN_IMAGES ?= 1000
crash: export KILL_ROUNDS ?= 50
crash: export BAD_FILES ?= all
crash: $(STAMP)
	@$(RUN) python -m pytest -m crash -s tests/store tests/broker tests/crash $(ARGS)

failover: export FAILOVER_ROUNDS ?= 30
failover: $(STAMP)
	@$(RUN) python -m pytest -s tests/cluster $(ARGS)

chaos: export LONG = 1
chaos: export PUSH_MEMBERS ?= 100
chaos: $(STAMP)
	@$(RUN) python -m pytest -s tests/client/test_push_chaos.py $(ARGS)

chaos-sink: export LONG = 1
chaos-sink: export SINK_KILLS ?= 200
chaos-sink: export SINK_HISTORIES ?= 3000
chaos-sink: $(STAMP)
	@$(RUN) python -m pytest -s tests/datasource/test_sink_model.py tests/crash/test_sink_matrix.py tests/crash/test_sink_spark.py tests/crash/test_sink_chaos.py $(ARGS)

cost: export COST = 1
cost: export COST_PAGE ?= docs/internals/request-costs.md
cost: $(STAMP)
	@$(RUN) python -m pytest -n 0 --tb=line tests/cost/test_costs.py tests/cost/test_scaling.py $(ARGS)

fuzz: export FUZZ_CASES ?= 1000000
fuzz: $(STAMP)
	@$(RUN) python -m pytest -n 2 --dist worksteal tests/fuzz/test_fuzz.py $(ARGS)

lint: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@PYTHONPATH=. $(VENV)/bin/lint-imports --no-cache
	@$(VENV)/bin/codespell $(TEXTS)

# One suite after the other; a failed one does not end the run.
verify: prepare
	@$(RUN) python tools/verify.py $(ARGS)

protos: $(STAMP)
	@$(RUN) python tools/protos.py

# ARGS=--no-install leaves out the installations, which need a package index.
dist: $(STAMP)
	@$(RUN) python tools/dist.py $(ARGS)

matrix: $(STAMP)
	@$(RUN) python tools/matrix.py $(ARGS)

# Monthly: docs/internals/releasing.md.
upgrade:
	@PYTHON="$(PYTHON)" sh tools/setup.sh upgrade $(VENV) demo,dev,docs
	@touch $(DEMO) $(STAMP)
	@$(MAKE) --no-print-directory lint test

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build -q -d site
	@echo "Open site/index.html"

tables: $(STAMP)
	@$(RUN) python -m tools.generated_tables

translated: $(STAMP)
	@$(RUN) python -m tools.translations $(PAGES)

bench: $(STAMP)
	@$(RUN) python -m benchmarks $(ARGS)

soak: $(STAMP)
	@$(RUN) python -m benchmarks.soak $(ARGS)

# All packages for the targets above.
setup: $(STAMP)

# Repeated when the dependencies, their versions or the script change, and when .venv is missing.
INPUTS := pyproject.toml constraints.txt tools/setup.sh

# All packages, which contain the demo's. Beside another target, the demo waits for them, as one pip runs at a time.
$(STAMP): $(INPUTS)
	@PYTHON="$(PYTHON)" sh tools/setup.sh packages $(VENV) demo,dev,docs
	@touch $(DEMO) $@

$(DEMO): $(INPUTS) | $(if $(filter-out demo,$(MAKECMDGOALS)),$(STAMP))
	@PYTHON="$(PYTHON)" sh tools/setup.sh packages $(VENV) demo
	@touch $@

# RocketMQ's own Node.js client, for its tests.
$(NODE)/node_modules/.installed: $(NODE)/package-lock.json
	@sh tools/setup.sh node $(NODE)
	@mkdir -p $(@D) && touch $@

# Chromium, for the tests of the console's pages.
$(VENV)/.browser: $(STAMP)
	@sh tools/setup.sh browser
	@touch $@

# nginx, for the test of the proxy behind it; after Chromium, because apt runs once at a time.
$(VENV)/.nginx: $(VENV)/.browser
	@sh tools/setup.sh unpack_nginx $(VENV)
	@touch $@

clean:
	rm -rf $(NODE)/node_modules
	rm -rf $(VENV) site rocket-data demo-output spark-warehouse metastore_db derby.log artifacts build dist
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
