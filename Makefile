# What one does here. `make demo` and `make test` are all a newcomer needs; both install what is missing.

CARGO ?= cargo
# The caches of others have a workspace of their own; what is built of it goes with the rest.
RIVALS = --manifest-path rivals/Cargo.toml --target-dir "$${CARGO_TARGET_DIR:-target}"
# Features that are off by default.
ALL_FEATURES = --features $$(scripts/run-tests --features),floe-lab/compiled-policies
# The crates whose integration tests are quick and need no other programs.
MODELLED = policy model trace device nbd block
.DEFAULT_GOAL := help

.PHONY: help
help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## build, then see a slow volume made faster
	@scripts/require build
	$(CARGO) run --profile demo --locked -p floe-lab --no-default-features --bin floe-demo

.PHONY: test
test: ## unit, model and integration tests, also with real NBD clients, from C and from Python
	@scripts/require build clients c python
	FLOE_REQUIRE_CLIENTS=1 CARGO="$(CARGO)" scripts/run-tests
	scripts/test-python

.PHONY: test-hosts
test-hosts: ## tests with guests, Ceph, RocksDB and a browser, and long campaigns
	@scripts/require build clients guest ceph c rocksdb browser s3
	FLOE_REQUIRE_CLIENTS=1 CARGO="$(CARGO)" scripts/run-tests --hosts

.PHONY: counts
counts: ## instructions and shared writes of the cache in memory, against their limits
	@scripts/require build bench
	$(CARGO) bench -p floe-memory --bench instructions --locked -- --check
	$(CARGO) bench -p floe-memory --bench count --locked -- --check

# What a change needs before it is committed: no other programs, no guests, no crash simulator.
.PHONY: check
check: ## format, clippy, unit and model tests, before a commit
	@scripts/require build lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test --workspace --lib --bins --locked --no-fail-fast
	$(CARGO) test $(addprefix -p floe-,$(MODELLED)) --test it --locked --no-fail-fast

.PHONY: lint
lint: ## formatting, clippy, documentation, targets, layers, limits, licences, packages
	@scripts/require build lint
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path rivals/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets $(ALL_FEATURES) --locked -- -D warnings
	$(CARGO) clippy $(RIVALS) --all-targets --locked -- -D warnings
	$(CARGO) metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 >/dev/null
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --document-private-items --locked
	$(CARGO) check -p floe-lab --no-default-features --bin floe-demo --locked
	scripts/check-targets
	scripts/check-layers
	scripts/house --check
	scripts/check-paths
	scripts/picture-demo --check
	scripts/picture-results --check
	scripts/check-results
	scripts/check-licences
	scripts/check-packages

.PHONY: fuzz
fuzz: ## what NBD clients and NVMe hosts can send, at random, for a minute
	@scripts/require build fuzz
	scripts/fuzz 60

# Each time other worlds, unless FLOE_CRASH_SEED says with which to begin.
.PHONY: soak
soak: ## a million crashes of the block cache, or FLOE_CRASHES, and 200 failovers of two pairs
	@scripts/require build test
	FLOE_CRASHES="$${FLOE_CRASHES:-1000000}" FLOE_CRASH_SEED="$${FLOE_CRASH_SEED:-$$(date +%s)000000}" \
		RUSTFLAGS='--cfg floe_crash' $(CARGO) test --release --locked --target-dir "$${CARGO_TARGET_DIR:-target}/crash" \
		-p floe-block --test crash soak -- --ignored --nocapture
	FLOE_SEED="$${FLOE_SEED:-$$(date +%s)}" $(CARGO) test --locked -p floe-cli --test it \
		failovers_without_end -- --ignored --nocapture

.PHONY: sanitize
sanitize: ## memory errors and data races between threads, in minutes
	@scripts/require build sanitize
	for sanitizer in $(or $(SANITIZERS),address thread); do scripts/sanitize $$sanitizer $(ONLY) || exit; done

.PHONY: miri
miri: ## undefined behaviour in the cache in memory, if Miri is there
	@scripts/require build
	@$(CARGO) miri --version >/dev/null 2>&1 || \
		{ echo 'Miri is missing: rustup +nightly component add miri, then cargo +nightly miri setup and make miri CARGO="cargo +nightly"' >&2; exit 1; }
	MIRIFLAGS='-Zmiri-permissive-provenance -Zmiri-disable-isolation' $(CARGO) miri test -p floe-memory --lib

.PHONY: bench
bench: ## benchmarks, each a ratio to a rival or to the floor
	@scripts/require build clients bench ceph c rocksdb
	$(CARGO) bench --workspace --locked --bench '*'
	scripts/results-rocksdb
	$(CARGO) build --release --locked -p floe-cli --bin floe --features compiled-policies
	scripts/results-server "$${CARGO_TARGET_DIR:-target}/release/floe" --rounds 3 --seconds 0.3
	$(CARGO) run --release --locked $(RIVALS) -- --rounds 3 --seconds 0.02 --only 64B,4KiB
	$(CARGO) run --release --locked $(RIVALS) -- --rounds 3 --seconds 0.01 --only arc --caches floe,quick_cache,scc
	$(CARGO) run --release --locked $(RIVALS) --features flash --bin floe-rivals-flash -- --rounds 3

# It takes hours, and goes on where it was interrupted. STEPS="table2 admission" makes only these.
.PHONY: results
results: ## the tables of docs/results anew, as far as FLOE_TRACES has the traces
	@scripts/require build
	$(CARGO) build --release --locked -p floe-cli --bin floe --features compiled-policies
	scripts/results run "$${CARGO_TARGET_DIR:-target}/release/floe" $(STEPS)

.PHONY: install-c
install-c: ## the library for C: PREFIX=/usr/local, DESTDIR=
	@scripts/require build
	$(CARGO) build --release --locked -p floe-c
	PREFIX="$${PREFIX:-/usr/local}" scripts/install-c "$$(cd "$${CARGO_TARGET_DIR:-target}" && pwd)/release"

.PHONY: deb
deb: ## the Debian package, in target/deb
	@scripts/require build deb
	$(CARGO) build --profile dist --locked --bin floe
	scripts/deb "$${CARGO_TARGET_DIR:-target}/dist/floe"

# PROGRAM=FILE is a program that is built already; tests have built this one.
.PHONY: test-deb
test-deb: ## the Debian package of PROGRAM, installed and removed in a Debian of its own
	@scripts/require build deb chroot
	@test -x "$(or $(PROGRAM),$${CARGO_TARGET_DIR:-target}/debug/floe)" || $(CARGO) build --locked --bin floe
	scripts/test-deb $(if $(PROGRAM),,--any-size) "$(or $(PROGRAM),$${CARGO_TARGET_DIR:-target}/debug/floe)"

.PHONY: man
man: ## manual pages, in target/man
	@scripts/require build
	mkdir -p target/man
	$(CARGO) run --release --locked --bin floe -- man target/man

.PHONY: site
site: ## the documentation as a site, in target/site
	@scripts/require build site
	scripts/site

.PHONY: doc
doc: ## the documentation of all crates, in target/doc
	@scripts/require build
	$(CARGO) doc --workspace --no-deps --locked
