# Holdfast. `make help` lists the targets.

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
FUZZTIME ?= 30s
IMAGE    ?= holdfast:$(VERSION)

GOFUMPT     := go run mvdan.cc/gofumpt@v0.12.0
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    := mosquitto mosquitto-clients python3-paho-mqtt
# The chaos harness also needs Docker Engine and these.
CHAOSTOOLS  := docker-compose nftables iproute2 procps

# Fuzz targets, as package:name.
FUZZ := hlc:FuzzParse resp:FuzzReadRequest resp:FuzzReadReply fsm:FuzzDecodeEntry fsm:FuzzRestore fsm:FuzzFrames \
	mqttfront:FuzzParsePayload

# The simulation: make sim SEEDS=200 DURATION=2m NODES=0 (drawn: 3 or 5) FIRST=1.
SEEDS    ?= 200
DURATION ?= 2m
NODES    ?= 0
FIRST    ?= 1
MUTANTS  ?= all
SIMULATE := go run ./test/sim/simulate

# The chaos harness: make chaos SEED=7 NODES=5 DURATION=5m, and perhaps FAULTS=kind,kind or MUTANT=name; SEED=0 draws one.
SEED     ?= 0
DIR      ?= report/chaos
FAULTS   ?=
MUTANT   ?=
CHAOS    := go -C test/chaos run .

.PHONY: help build dev test packages test-go test-sdk sim sim-long sim-mutants sim-mutants-recorded chaos chaos-smoke chaos-check chaos-selftest \
	chaos-packages test-chaos soak figures lint fmt fuzz bench-go image clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

build: ## build bin/holdfast, a static binary
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/holdfast ./cmd/holdfast

dev: build ## build, and run the whole product in one process
	./bin/holdfast dev

test: packages test-go test-sdk ## everything that needs only Go and a few Debian packages, race detector on

chaos-packages: ## install the Debian packages that the chaos harness needs, or name them
	@$(MAKE) --no-print-directory packages PACKAGES="$(PACKAGES) $(CHAOSTOOLS)"

packages: ## install the Debian packages that the tests need, or name them
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Debian packages:$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null; \
	else echo "please install these Debian packages:$$missing"; exit 1; fi

test-go: ## unit, property and integration tests
	go test -race -count=1 -timeout 9m ./...

test-sdk: ## the protocol's Go client library, unmodified, against holdfast dev (a module of its own)
	cd test/sdk && go test -count=1 -timeout 5m ./...

sim: ## whole clusters in virtual time with faults drawn from seeds: SEEDS, FIRST, DURATION, NODES
	$(SIMULATE) -seeds $(SEEDS) -first $(FIRST) -duration $(DURATION) -nodes $(NODES)

sim-long: ## the same for hours: 5000 seeds that nobody has run
	$(SIMULATE) -seeds 5000 -first $$(date +%s) -duration $(DURATION) -nodes $(NODES)

sim-mutants: ## show that the simulation catches each of the mutants (or MUTANTS=name,name), within SEEDS seeds (up to half an hour)
	$(SIMULATE) -mutants $(MUTANTS) -seeds $(SEEDS) -first $(FIRST) -duration $(DURATION)

sim-mutants-recorded: ## the same for five mutants, with seeds that are known to catch them
	$(SIMULATE) -mutants ack_early,dedup_off,fence_off,wall_expiry,old_session -recorded -duration $(DURATION)

chaos: chaos-packages ## real containers under faults for DURATION: SEED, NODES; needs root, Docker Engine and docker-compose
	$(CHAOS) run --seed $(SEED) --nodes $(if $(filter 0,$(NODES)),5,$(NODES)) --duration $(if $(filter file,$(origin DURATION)),5m,$(DURATION)) --report $(CURDIR)/$(DIR) --faults "$(FAULTS)" --mutant "$(MUTANT)"

chaos-smoke: chaos-packages ## the same with three nodes and three faults, 90 s
	$(CHAOS) run --smoke --seed $(SEED) --nodes 3 --duration 90s --report $(CURDIR)/$(DIR)-smoke

chaos-check: ## judge an old run again: DIR
	$(CHAOS) check $(abspath $(DIR))

chaos-selftest: chaos-packages ## show that the chaos harness catches each of six mutants, and leaves the product alone (half an hour)
	$(CHAOS) selftest --report $(CURDIR)/$(DIR)-selftest

test-chaos: ## the chaos harness' own tests: its disk needs root and /dev/fuse
	cd test/chaos && go test -race -count=1 -timeout 5m ./...

soak: ## the embedded broker for 30 s at 256 outstanding requests
	HOLDFAST_SOAK=30s go test -race -count=1 -timeout 5m -run Soak -v ./mqttfront/embedded

figures: ## measure: a million keys, one node beside three, 20 repetitions of each failure (20 minutes)
	HOLDFAST_FIGURES=1000000 go test -count=1 -timeout 30m -run 'TestManyKeys|TestThroughput' -v ./test/integration | grep -v level=
	HOLDFAST_REPEAT=20 go test -count=1 -timeout 20m -run TestFailover -v ./test/integration | grep -v level=

lint: ## formatting, vet and staticcheck; fails when something is to be said
	@unformatted="$$($(GOFUMPT) -l .)"; if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	go vet ./... && $(STATICCHECK) ./...
	cd test/sdk && go vet ./... && $(STATICCHECK) ./...
	cd test/chaos && go vet ./... && $(STATICCHECK) ./...
	go vet -tags skewed_clock ./cluster

fmt: ## format all Go code
	$(GOFUMPT) -w .

fuzz: ## run each fuzz target for FUZZTIME
	@set -e; for target in $(FUZZ); do \
		echo "fuzz $$target for $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime $(FUZZTIME) ./$${target%%:*}; done

bench-go: ## micro-benchmarks of the hot paths
	go test -run '^$$' -bench . -benchmem ./...

image: build ## build a container image FROM scratch; needs Docker, and no registry
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

clean: ## remove what was built
	rm -rf bin
