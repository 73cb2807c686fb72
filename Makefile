# Rackweave. `make up` and `make test` install what a fresh machine with Rust and make still lacks.
.PHONY: up netns-rack build test bench soak fuzz mutants style lint deps-test clean

CARGO ?= cargo
BIN := target/release/rackweave
# Passed to `rackweave up`, for instance: make up ARGS="--servers 6 --http 127.0.0.1:9100"
ARGS ?=
# A new rack has keys; without: make up KEYS=
KEYS ?= --keys
DATA_PLANE ?= process

up: build
	$(BIN) up $(KEYS) $(ARGS)

# The same on hosts in network namespaces, with the switch in a process or in the kernel: DATA_PLANE=process|tc|xdp.
netns-rack: build
	@scripts/deps test
	@RACKWEAVE_BIN=$(BIN) DATA_PLANE="$(DATA_PLANE)" ARGS="$(ARGS)" scripts/netns-rack

build:
	@scripts/deps build
	$(CARGO) build --release -p rackweave

# Everything that guards a change: unit and property tests, fault-search seeds, and real NBD clients.
test:
	@scripts/deps test
	@scripts/test

# Ratios against nbdkit and the simulator's speed; wants a quiet machine.
bench: build
	@scripts/deps test
	@scripts/bench

# Longer than `make test` allows: more fault-search seeds, more kills, longer fio runs.
soak: build
	@scripts/deps test
	@scripts/soak

# Breaks one rule at a time and looks which check notices (docs/mutants.md). ONLY=part of names, SEEDS=of each kind of plan,
# JSON=file; MUTANTS_ARGS: more options of the program.
mutants:
	@scripts/mutants $(if $(ONLY),--only $(ONLY)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(JSON),--json $(JSON)) $(MUTANTS_ARGS)

# Coverage-guided fuzzing of every parser, on all cores, that many seconds in total (docs/fuzzing.md).
SECONDS ?= 60
fuzz:
	@scripts/deps fuzz
	@scripts/fuzz $(SECONDS)

# Format, sizes, and clippy, of what tests are built from.
style:
	$(CARGO) fmt --all --check
	@scripts/sizes
	RUSTFLAGS="--cfg mutants" $(CARGO) clippy --workspace --all-targets --profile test -- -D warnings

lint: style
	@scripts/deps lint
	PATH="$(CURDIR)/.tools/bin:$$PATH" $(CARGO) deny check bans licenses sources

clean:
	$(CARGO) clean
