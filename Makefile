# `make serve` runs the application on this machine; `make test` checks everything (first what starts no engine, on
# all cores; then what does, one after the other). The same examples each time; plain `pytest` tries others.
#   PORT=8000         HTTP port
#   MODEL=            a local directory or a hub name; the embedded default model unless set
#   CONFIG=serve.yaml a Serve config file
# `make bench` compares it with stock vLLM here: COMPARISON=mixed (docs/compare.md)

VENV ?= .venv
CONFIG ?= serve.yaml
COMPARISON ?= mixed
EXTRA ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
BIN := $(VENV)/bin

.PHONY: serve test check bench lock clean

serve:
	@requirements/install.sh $(VENV) $(EXTRA)
	@exec $(BIN)/expresslane serve --config $(CONFIG) $(if $(PORT),--port $(PORT)) $(if $(MODEL),--model $(MODEL))

test: check
	$(BIN)/python -m pytest --hypothesis-profile=ci -m "not engine and not e2e" -n logical --dist loadfile
	$(BIN)/python -m pytest --hypothesis-profile=ci -m "engine or e2e" --durations=40 --durations-min=5

check:
	@requirements/install.sh $(VENV) $(EXTRA) dev
	@requirements/system.sh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench:
	@requirements/install.sh $(VENV) $(EXTRA)
	$(BIN)/expresslane compare $(COMPARISON)

lock:
	$(BIN)/python -m pip install uv
	requirements/lock.sh $(BIN)/uv

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
