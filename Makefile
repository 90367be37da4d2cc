# A thin front for CMake: each verb brings in what it needs, configures build/$(PRESET), builds and runs.
PRESET ?= release
SEED ?=
ARGS ?=
PEERS ?=
MINUTES ?= 0
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)

bootstrap = @sh cmake/bootstrap.sh
configure = @cmake --preset $(PRESET) --log-level=WARNING >/dev/null
build = @cmake --build --preset $(PRESET)
# GCC 12's ThreadSanitizer does not start under the wide address randomisation of some kernels.
launcher = $(if $(filter tsan,$(PRESET)),$(shell setarch -R true 2>/dev/null && echo setarch -R))
sources = find include src tests bench examples tools -name '*.hpp' -o -name '*.cpp'

.PHONY: help build run run-catch run-atari test test-cuda fuzz chaos rehearsal cluster-lab atari-deps bench bench-report docs \
        format format-check install clean

help:
	@echo 'make build           compile the examples'
	@echo 'make run             compile and run the Ape-X example: SEED=7 ARGS="--help"'
	@echo 'make run-catch       the same for Catch, a small task of pixels'
	@echo 'make run-atari       and for Atari: ARGS="--game breakout"'
	@echo 'make test            compile everything, run all tests'
	@echo '                     PRESET=debug|asan|tsan|coverage chooses another kind of build for all of these'
	@echo 'make rehearsal       the manifests of Kubernetes in network namespaces, as root: MINUTES=8 ARGS="--seed 1"'
	@echo 'make cluster-lab     the same in podman and on a real control plane, which are made first: as root, on Debian 12'
	@echo 'make fuzz            fuzz what comes from outside, briefly; longer: MINUTES=10 for each target; needs Clang'
	@echo 'make chaos           a cluster under faults: MINUTES=10 SEED=7; needs root, for network namespaces'
	@echo 'make atari-deps      make build/python, a Python with Gymnasium and the Atari games'
	@echo 'make bench           measure; PEERS="..." adds rivals, ARGS="--quick" options; build/benchmarks.md'
	@echo 'make bench-report    make docs/benchmarks.md of the last measurement'
	@echo 'make docs            reference manual in build/docs/html'
	@echo 'make format          apply .clang-format; format-check only looks'
	@echo 'make install         install headers, CMake package and the program troop: PREFIX=/usr/local'
	@echo 'make clean           remove build/'

build:
	$(bootstrap) run
	$(configure)
	$(build) --target examples

run: EXAMPLE = cart_pole
run-catch: EXAMPLE = catch
run run-catch:
	$(bootstrap) run
	$(configure)
	$(build) --target $(EXAMPLE)
	@$(launcher) build/$(PRESET)/examples/$(EXAMPLE) $(if $(SEED),--seed $(SEED)) $(ARGS)

run-atari: atari-deps
	$(build) --target atari
	@$(launcher) build/$(PRESET)/examples/atari $(if $(SEED),--seed $(SEED)) $(ARGS)

# Without a package index all but the tests of Gymnasium and Atari can be run, and those say that they were skipped.
test:
	$(bootstrap) test
	$(configure)
	@[ -n "$$TROOP_NO_BOOTSTRAP" ] || cmake --build --preset $(PRESET) --target atari_deps || \
	  echo 'The tests of Gymnasium and Atari will be skipped.'
	$(build)
	@[ "$(PRESET)" != release ] || $(MAKE) --no-print-directory test-cuda
	@$(launcher) ctest --preset $(PRESET)

# The CUDA learner, where the toolkit and cuDNN are: compiled for one architecture, in a build directory of its own, for
# the release build looks for neither. What needs a GPU is skipped without one.
nvcc = $(shell PATH="$$PATH:/usr/local/cuda/bin" command -v nvcc)
test-cuda:
	@if [ -z "$(nvcc)" ]; then :; \
	elif cmake --preset cuda --log-level=WARNING >/dev/null; then cmake --build --preset cuda && ctest --preset cuda; \
	else echo 'The CUDA learner is not compiled.'; fi

rehearsal: MINUTES = 8
rehearsal:
	$(bootstrap) test
	$(configure)
	$(build) --target cart_pole
	@python3 tests/kubernetes/rehearsal.py build/$(PRESET)/examples/cart_pole --target overlays/gke-shards --minutes $(MINUTES) $(ARGS)

cluster-lab:
	$(bootstrap) lab
	@python3 tests/kubernetes/containers.py
	@tests/kubernetes/control_plane.sh build
	@python3 tests/kubernetes/cluster_lab.py

fuzz: PRESET = fuzz
fuzz:
	$(bootstrap) fuzz
	@cmake --preset fuzz -DTROOP_FUZZ_MINUTES=$(MINUTES) --log-level=WARNING >/dev/null
	$(build)
	@ctest --preset fuzz

# The seed of a schedule that broke something is printed.
chaos: MINUTES = 1
chaos:
	$(bootstrap) test
	@cmake --preset $(PRESET) -DTROOP_CHAOS_MINUTES=$(MINUTES) -DTROOP_CHAOS_SEED=$(SEED) --log-level=WARNING >/dev/null
	$(build) --target chaos_run

atari-deps:
	$(bootstrap) atari
	$(configure)
	$(build) --target atari_deps

bench:
	$(bootstrap) bench
	$(configure)
	$(build) --target benchmarks
	@python3 bench/compare.py --build build/$(PRESET) --peers "$(PEERS)" --output build/bench.json $(ARGS)
	@python3 bench/report.py build/bench.json --output build/benchmarks.md --plots build/plots

bench-report:
	@python3 bench/report.py build/bench.json --output docs/benchmarks.md --plots docs/images

docs: PRESET = docs
docs:
	$(bootstrap) docs
	$(configure)
	$(build)

format:
	$(bootstrap) format
	@$(sources) | xargs clang-format -i

format-check:
	$(bootstrap) format
	@$(sources) | xargs clang-format --dry-run --Werror

install: PREFIX ?= /usr/local
install:
	$(bootstrap) run
	$(configure)
	$(build) --target troop_libraries troop_tool
	@cmake --install build/$(PRESET) --prefix "$(PREFIX)" --component devel
	@cmake --install build/$(PRESET) --prefix "$(PREFIX)" --component tools

clean:
	@rm -rf build
