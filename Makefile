# Needs Python >= 3.11, make, and Java >= 17 (without one, the first run fetches it into .venv).

BIN := .venv/bin
READY := .venv/.logtx-ready
LOCKS := requirements.lock make/build.lock make/jdk.lock
# Most tests wait for brokers and for each other: more files at a time than there are cores.
SIDE_BY_SIDE := -n 9 --dist loadfile --no-loadscope-reorder --durations 12
# Slow ones fill two cores: more at a time would measure how long others let them wait.
TWO_BY_TWO := $(subst -n 9,-n 2,$(SIDE_BY_SIDE))
export PYTHON
# With it, each of the hundreds of processes of tests and chaos would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo chaos test test-all test-spark one check sanitize fuzz leaks wheels hooks search bench bench-full bench-failover bench-recovery bench-spill bench-spark bench-metadata bench-sidecar bench-queue simulate proto lock clean
.DEFAULT_GOAL := help

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Show logtx at work on a Kafka of its own (ARGS="--flights 10000")
	@$(BIN)/logtx demo $(ARGS)

chaos: $(READY) ## Attack a cluster of three brokers, check what clients saw (SECONDS=300, SEED=1)
	@$(BIN)/logtx chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

test: $(READY) ## Run the tests without the slow ones (ARGS="-k spill")
	$(BIN)/pytest -m "not slow" $(SIDE_BY_SIDE) $(ARGS)

test-all: $(READY) ## Run all tests, which takes over an hour
	$(BIN)/pytest $(TWO_BY_TWO) $(ARGS)

test-spark: $(READY) ## Run Spark's main tests on other versions of it (PYSPARK="4.1.4 4.3.0")
	@for version in $(or $(PYSPARK),4.1.4 4.3.0); do make/spark.sh $$version $(ARGS) || exit; done

one: $(READY) ## Run one test, file or folder (TEST=tests/journal/test_txid.py)
	@$(BIN)/pytest -q $(or $(TEST),$(error say which: make one TEST=tests/journal/test_txid.py)) $(ARGS)

simulate: $(READY) ## Run histories with faults, by seed (SEEDS=20000, START=0), or one again (SEED=7)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) \
	  $(if $(SEEDS),--seeds $(SEEDS)) $(if $(START),--start $(START)) $(ARGS)

check: $(READY) ## Lint, format check, spelling, types, import rules, references, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python make/references.py
	make/proto.sh --check

sanitize: $(READY) ## Run the C extension's tests with its compiler's sanitizers
	@make/sanitize.sh $(ARGS)

fuzz: $(READY) ## Draw batches and headers for the C extension (SECONDS=600, SEED=1, SANITIZED=1)
	@$(if $(SANITIZED),make/sanitize.sh --fuzz,$(BIN)/python -m tests.journal.native.fuzz) \
	  $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

leaks: $(READY) ## Send and read many records by the C extension, measure memory (ARGS="--records 1e8")
	@$(BIN)/python -m tests.journal.native.leaks $(ARGS)

wheels: $(READY) ## Build the source and wheels for six platforms into dist (ARGS="dist x86_64-linux-gnu.2.17")
	@make/wheels.sh $(ARGS)

hooks: $(READY) ## Let git run those checks at each commit
	@$(BIN)/pre-commit install

search: $(READY) ## Visit every state of small configurations of the cores (ARGS="--mutations")
	@$(BIN)/python -m tests.search $(ARGS)

bench: $(READY) ## Run the main benchmarks beside Kafka's own transactions, 3 minutes (ARGS="--help")
	$(BIN)/python -m benchmarks $(ARGS)

bench-full: $(READY) ## Run all benchmarks beside Kafka's own transactions (ARGS="--write-docs")
	$(BIN)/python -m benchmarks --full $(ARGS)

bench-failover: $(READY) ## Measure stalls when coordinators are killed, moved, paused (ARGS="--help")
	$(BIN)/python -m benchmarks.failover $(ARGS)

bench-recovery: $(READY) ## Measure how long loading a long journal takes (ARGS="--help")
	$(BIN)/python -m benchmarks.recovery $(ARGS)

bench-spill: $(READY) ## Measure memory and time of a 5 GB transaction (ARGS="--gigabytes 2")
	$(BIN)/python -m benchmarks.spill $(ARGS)

bench-metadata: $(READY) ## Measure topics in metadata mode beside markers (ARGS="--part many --rounds 1")
	$(BIN)/python -m benchmarks.metadata $(ARGS)

bench-sidecar: $(READY) ## Measure transactions in sidecars beside markers (ARGS="--gigabytes 5")
	$(BIN)/python -m benchmarks.sidecar $(ARGS)

bench-queue: $(READY) ## Measure queues beside consumers and share groups (ARGS="--part acks --rounds 1")
	$(BIN)/python -m benchmarks.queue $(ARGS)

bench-spark: $(READY) ## Measure Spark's sink, sources and audit (ARGS="--only sink --rounds 1")
	$(BIN)/python -m benchmarks.spark $(ARGS)

proto: $(READY) ## Generate Python from the .proto files
	make/proto.sh

lock: $(READY) ## Resolve what pyproject.toml and Kafka need into the lock files (ARGS=--upgrade)
	make/lock.sh $(ARGS)

clean: ## Remove .venv, build output and caches
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.ns/*' -prune -exec rm -rf {} +

$(READY): $(LOCKS) pyproject.toml make/bootstrap.sh make/native.py $(wildcard journal/native/*.[ch])
	@make/bootstrap.sh
