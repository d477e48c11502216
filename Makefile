# Two commands do all: `make demo` runs the main job, `make test` the tests. Both make .venv first, from
# constraints.txt, with whatever the shell tells pip (PIP_FIND_LINKS, PIP_INDEX_URL, ...).
# ARGS goes to the command that is run: make test ARGS="tests/unit -x"

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
# Stamps inside the environment: a second call installs nothing.
DEMO_READY := $(VENV)/.ready-demo
TEST_READY := $(VENV)/.ready-test
FUZZ_READY := $(VENV)/.ready-fuzz
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test slow sim kills soak fuzz check format bench gpu clean
.NOTPARALLEL:

demo: $(DEMO_READY)
	$(BIN)/paramstream demo $(ARGS)

# Most tests wait for processes more than they count, so files of them run side by side.
test: $(TEST_READY)
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(ARGS)

# The long tests only. One of them may rightly take longer than the limit that ends a hanging short one.
slow: $(TEST_READY)
	$(BIN)/pytest -m slow -o faulthandler_timeout=1800 $(ARGS)

# Hostile worlds, one from each seed: the real cores on a virtual clock. A failure is told with its first bad event and the few
# steps that matter. ARGS="--mutations" shows that each promise, switched off, is caught.
SEEDS ?= 1:2000
sim: $(TEST_READY)
	cd tests && ../$(BIN)/python -m simulation --seeds $(SEEDS) $(ARGS)

# Random SIGKILL over brokers, publishers and replicas, over a local log and, with fewer rounds, over Kafka, which is killed too:
# whatever was promised is held against the log. A failure names seed and round.
ROUNDS ?= 200
KAFKA_ROUNDS ?= 20
SEED ?= 7
KILLS := $(BIN)/pytest -m slow -o faulthandler_timeout=1800 --seed $(SEED)
kills: $(TEST_READY)
	$(KILLS) tests/integration/test_kills.py --rounds $(ROUNDS) $(ARGS)
	$(KILLS) tests/integration/test_processor_kills.py -k "not kafka" --rounds $(ROUNDS) $(ARGS)
	$(KILLS) tests/integration/test_kafka_kills.py --rounds $(KAFKA_ROUNDS) $(ARGS)
	$(KILLS) tests/integration/test_processor_kills.py -k kafka --rounds $(KAFKA_ROUNDS) $(ARGS)

# A broker, a publisher and a replica under a dense load: memory, descriptors and the log must not grow.
MINUTES ?= 10
soak: $(TEST_READY)
	cd tests && ../$(BIN)/python -m soak --minutes $(MINUTES) $(ARGS)

# Inputs that a decoder does not refuse as it should, searched for by coverage: ten minutes in each fuzzer (wire, log, kafka, state,
# text, peers), or in TARGET alone. What is found is kept in tests/fuzzing/corpus, and fails `make test` until it is mended.
TARGET ?=
fuzz: $(FUZZ_READY)
	cd tests && ../$(BIN)/python -m fuzzing $(TARGET) --minutes $(MINUTES) $(ARGS)

check: $(TEST_READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright

format: $(TEST_READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(TEST_READY)
	$(BIN)/paramstream bench $(ARGS)

# On a machine with CUDA: the HBM tier bit for bit, and its swaps beside a plain pinned copy. Elsewhere the same on the CPU.
gpu: $(TEST_READY)
	$(BIN)/paramstream bench gpu $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "paramstream needs Python 3.11 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the tests need holds all that the demo needs, so this stamp stands for both.
$(TEST_READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing paramstream and its test tools into $(VENV) (some minutes, once)"
	$(INSTALL) --editable '.[torch,kafka,demo,dev]'
	@touch $(DEMO_READY) $@

# atheris has wheels for some Pythons on Linux, and elsewhere wants a clang with libFuzzer: it is not among what the tests need.
$(FUZZ_READY): pyproject.toml constraints.txt | $(TEST_READY)
	$(INSTALL) --only-binary atheris --editable '.[fuzz]' \
		|| { echo "atheris has no wheel for this Python and machine: fuzz with Python 3.11 to 3.13 on Linux" >&2; exit 1; }
	@touch $@

$(DEMO_READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing paramstream into $(VENV) (some minutes, once)"
	$(INSTALL) --editable '.[torch,demo]'
	@touch $@
