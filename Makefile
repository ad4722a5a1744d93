# Two commands do everything from a fresh clone: `make demo` shows it work, `make test` proves it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

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
	@bash scripts/install-chromium.sh
	@bash scripts/install-sshd.sh
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2 --dist loadfile

demo: setup
	$(BIN)/snugnet run digits --out runs/digits --threads 2

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info
