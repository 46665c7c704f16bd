# Aerie: `make serve` and `make test` do everything on a fresh machine; `make help` lists the rest.
PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
CONFIG ?= configs/serve/demo.yaml
TORCH_INDEX ?=
WORKERS ?= auto
BASE_IMAGE ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SGLANG_VENV := .venv-sglang
SGLANG_STAMP := $(SGLANG_VENV)/.installed
OLDEST_VENV := .venv-sglang-oldest
OLDEST_STAMP := $(OLDEST_VENV)/.installed
CLIENTS_VENV := .venv-clients
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
GPU_VENV := .venv-gpu
GPU_STAMP := $(GPU_VENV)/.installed
ARCHS ?= 75 80 89 90a 100a 120a
DTYPES ?= bf16 f16
HEAD_DIMS ?= 64 128
FLASHINFER ?=
TRITON ?=
GPU_KIT ?= build/gpu-kit
GPU_PYTHON ?= 3.12
HAVE ?= @scripts/gpu_have.txt
GPU_SET ?= build/gpu-set
GPU_CALLS := first second third
GPU_OUT ?= bench/results/gpu
LIMIT ?= 540
PARTS ?=
NAMES ?=
TRITON_TESTS := $(wildcard tests/engine/*/test_triton_*.py tests/spec/*/test_triton_*.py)
MARCH ?= x86-64-v3
CPP_TESTS := $(filter-out tests/native/test_library.py tests/native/test_compilation.py tests/native/test_neon.py,$(wildcard tests/native/test_*.py))
CARRIED := $(VENV)/.carried
GPU_READY := $(if $(wildcard $(CARRIED)),,$(STAMP))
GPU_PARTS = BIN="$(BIN)" OUT="$(GPU_OUT)" LIMIT="$(LIMIT)" PARTS="$(PARTS)" TRITON_TESTS="$(TRITON_TESTS)" CONFIG= OPTIONS= PAIR= sh scripts/gpu_parts.sh
GPU_QUICK = BIN="$(BIN)" OUT=build/gpu-quick LIMIT=900 PARTS="$(PARTS)" TRITON_TESTS="$(TRITON_TESTS)" CONFIG=configs/serve/tiny-dummy.yaml OPTIONS=--quick \
	PAIR="--quick --device auto --work build/gpu-quick/pair" sh scripts/gpu_parts.sh

.DEFAULT_GOAL := help
.PHONY: help setup setup-sglang setup-sglang-oldest setup-clients serve chat test test-march test-neon \
	test-sglang test-clients agreement setup-peers image-test setup-gpu-contracts kernels test-gpu-contracts \
	gpu-kit gpu-set gpu-rehearsal gpu-setup gpu-check gpu-bench gpu-quick gpu-peers check format size docs claims \
	experiments demo-model

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install Aerie and its pinned dependencies

$(STAMP): pyproject.toml constraints.txt scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" sh scripts/install.sh
	@sh scripts/link_package.sh
	@$(BIN)/python -m aerie.native.library
	@touch $@

setup-sglang: $(SGLANG_STAMP) ## create .venv-sglang with SGLang and its own PyTorch (10 GB)

$(SGLANG_STAMP): pyproject.toml constraints-sglang.txt scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(SGLANG_VENV)" EXTRAS="dev,sglang" CONSTRAINTS=constraints-sglang.txt WITH_UV=1 \
		SIZE="10 GB" TORCH_INDEX= sh scripts/install.sh
	@touch $@

setup-sglang-oldest: $(OLDEST_STAMP) ## the same with the oldest SGLang that is served, for its tests

$(OLDEST_STAMP): pyproject.toml constraints-sglang-oldest.txt scripts/install.sh
	@PYTHON="$(PYTHON)" VENV="$(OLDEST_VENV)" EXTRAS="sglang-oldest" CONSTRAINTS=constraints-sglang-oldest.txt \
		WITH_UV=1 SIZE="10 GB" TORCH_INDEX= sh scripts/install.sh
	@touch $@

setup-clients: $(CLIENTS_STAMP) ## create .venv-clients with other people's clients, and the Node client where npm is

$(CLIENTS_STAMP): constraints-clients.txt tests/clients/package.json
	@$(PYTHON) -m venv $(CLIENTS_VENV)
	@$(CLIENTS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r constraints-clients.txt
	@mkdir -p build/clients && cp tests/clients/package.json build/clients
	@if command -v npm >/dev/null; then npm install --prefix build/clients --no-package-lock --ignore-scripts --silent; \
		else echo "aerie: no npm here, so the Node client is left out"; fi
	@touch $@

serve: $(STAMP) ## serve the embedded model (CONFIG= HOST= PORT=)
	@$(BIN)/aerie serve $(CONFIG) server.host=$(HOST) server.port=$(PORT)

chat: $(STAMP) ## talk to a running server in the terminal
	@$(BIN)/aerie chat --url http://$(HOST):$(PORT)

test: $(STAMP) ## run every test, a file at a time on each of WORKERS= (auto: the cores, four at most)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile

test-march: $(STAMP) ## run the tests of the C++ kernels compiled for MARCH=, as in x86-64-v2
	@AERIE_MARCH=$(MARCH) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses 4 --dist loadfile $(CPP_TESTS)

test-neon: $(STAMP) ## run the C++ kernels compiled for Arm in an emulator (Debian: g++-aarch64-linux-gnu, qemu-user)
	@$(BIN)/python -m pytest -q -n0 -rs tests/native/test_neon.py

test-sglang: $(SGLANG_STAMP) ## run the tests that need SGLang
	@OMP_NUM_THREADS=1 $(SGLANG_VENV)/bin/python -m pytest -rs tests/sglang

test-clients: $(STAMP) $(CLIENTS_STAMP) ## other people's clients against a server of the demo pair, on loopback
	@$(CLIENTS_VENV)/bin/python -m pytest -rs tests/clients

agreement: $(STAMP) ## our load generator beside an independent one on the same server (installs aiperf, 1.2 GB)
	@[ -x build/aiperf/bin/aiperf ] || { $(BIN)/python -m venv build/aiperf && \
		build/aiperf/bin/python -m pip install --quiet --disable-pip-version-check aiperf==0.13.0; }
	@$(BIN)/python scripts/agreement.py --json bench/results/agreement.json

setup-peers: $(STAMP) ## build llama.cpp from source, to measure beside
	@sh scripts/peers/llama_cpp.sh build $(BIN)/python

image-test: $(STAMP) ## lint the images; build and run the CPU one where buildah and podman are (BASE_IMAGE=)
	@BASE_IMAGE="$(BASE_IMAGE)" TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python -m pytest tests/docker --image -rs

setup-gpu-contracts: $(GPU_STAMP) ## create .venv-gpu with FlashInfer and Triton, for a machine without a GPU

$(GPU_STAMP): pyproject.toml constraints.txt constraints-gpu.txt scripts/install.sh scripts/gpu_contracts.sh
	@PYTHON="$(PYTHON)" VENV="$(GPU_VENV)" TORCH_INDEX="$(TORCH_INDEX)" sh scripts/install.sh
	@VENV="$(GPU_VENV)" FLASHINFER="$(FLASHINFER)" TRITON="$(TRITON)" sh scripts/gpu_contracts.sh
	@touch $@

kernels: $(GPU_STAMP) ## compile attention modules for ARCHS= and pack them under build/kernels; needs nvcc, no GPU
	@$(GPU_VENV)/bin/python -m aerie.engine.attention.flashinfer_prebuild "$(ARCHS)" "$(DTYPES)" "$(HEAD_DIMS)"

test-gpu-contracts: $(GPU_STAMP) ## FlashInfer's planner and Triton's kernels, tested on a CPU
	@$(MAKE) --no-print-directory kernels ARCHS=90a DTYPES=bf16 HEAD_DIMS=64
	@OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(GPU_VENV)/bin/python -m pytest -rs --timeout 900 \
		tests/engine/attention/test_attention.py \
		$(wildcard tests/engine/attention/test_flashinfer_*.py) $(TRITON_TESTS)

gpu-kit: $(STAMP) ## pack wheels and attention modules for a GPU's machine without a network (GPU_PYTHON=3.12 HAVE=)
	@$(BIN)/python scripts/gpu_kit.py $(GPU_KIT) --python "$(GPU_PYTHON)" --have "$(HAVE)"

gpu-set: gpu-kit ## sources without the demo's weights and that pack in one folder of at most 64 MiB
	@$(BIN)/python scripts/gpu_set.py $(GPU_SET)

gpu-rehearsal: $(GPU_READY) ## the three calls of scripts/gpu_call.py on any machine, small: shows that every stage runs
	@for call in $(GPU_CALLS); do \
		$(BIN)/python scripts/gpu_call.py $$call --out build/gpu-rehearsal/$$call --rehearsal --venv $(VENV) || exit 1; \
	done

gpu-setup: ## on a GPU's machine without a network: create .venv from that pack and the PyTorch of PYTHON=
	@PYTHON="$(PYTHON)" VENV="$(VENV)" KIT="$(GPU_KIT)" sh scripts/gpu_setup.sh
	@touch $(CARRIED)

gpu-check: $(GPU_READY) ## on a GPU: its tests, then attention, graphs and tokens against what they must be
	@$(GPU_PARTS) check

gpu-bench: $(GPU_READY) ## on a GPU: attention, kernels and decoding on a shape with random weights; a pair trained there
	@$(GPU_PARTS) bench

gpu-quick: $(GPU_READY) ## the parts of gpu-check and gpu-bench on any machine, small: shows that they run, measures nothing
	@$(GPU_QUICK) check
	@$(GPU_QUICK) bench

gpu-peers: $(STAMP) ## on a GPU with SGLang in .venv-sglang: both servers on that shape, acceptance simulated
	@$(BIN)/python scripts/gpu_shape.py configs/shape/llama-3.1-8b build/gpu-shape
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/aerie bench sweep configs/sweep/gpu-simulated.yaml --out bench/results/gpu/peers

check: $(STAMP) ## formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@sh scripts/link_package.sh
	@$(BIN)/mypy

format: $(STAMP) ## rewrite the sources in the one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

size: ## lines of Python, C++, tests and docs by top-level folder
	@git ls-files '*.py' '*.cpp' '*.c' '*.h' '*.md' | xargs wc -l | awk '$$2 != "total" { \
		folder = $$2 ~ /\// ? $$2 : "."; sub(/\/.*/, "", folder); \
		kind = folder == "tests" ? "tests" : $$2 ~ /\.py$$/ ? "Python" : $$2 ~ /\.md$$/ ? "docs" : "C++"; \
		lines[kind "\t" folder] += $$1; all[kind] += $$1 } \
		END { for (key in lines) print key "\t" lines[key]; for (kind in all) print kind "\tall\t" all[kind] }' | sort | expand -t 10,24

docs: $(STAMP) ## renew the figures and tables of README and docs from bench/results
	@$(BIN)/python -m aerie.bench.claims --write

claims: $(STAMP) ## whether every figure of README and docs has a result that is sound and not older than its code
	@$(BIN)/python -m aerie.bench.claims

experiments: $(STAMP) ## repeat the papers' claims about training on a small pair (NAMES=; docs/training.md; hours)
	@$(BIN)/python -m aerie.experiments $(NAMES)

demo-model: $(STAMP) ## train a pair like the demo's: target and head (docs/training.md says how long)
	@$(BIN)/aerie train all configs/train/demo.yaml
