# Two commands do everything from a fresh clone: `make demo` shows it work, `make test` proves it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: setup test demo lint clean

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.ready

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n 2

demo: setup
	$(BIN)/snugnet zoo
	$(BIN)/snugnet show hardcore

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
