# Holdfast. `make help` lists the targets.

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
# How much each target is fuzzed: a count, because a time that runs out fails now and then by itself (golang/go#75804).
FUZZTIME ?= 300000x
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
IMAGE    ?= holdfast:$(VERSION)
ARCH     := $(shell go env GOARCH)

ARCHITECTURES := amd64 arm64
# Debian's order: 1.0.0~rc1 is before 1.0.0, and 1.0.0+3.gabc, three commits later, behind it. Without a tag it is before all.
DEBVERSION    := $(shell echo "$(VERSION)" | sed -E -e 's/^v([0-9])/\1/' -e '/^[0-9]+\.[0-9]/!s/^/0~git./' -e 's/-(rc|beta|alpha)/~\1/' -e 's/-/+/; s/-/./g')

GOFUMPT     := go run mvdan.cc/gofumpt@v0.12.0
NFPM        := go run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    := mosquitto mosquitto-clients python3-paho-mqtt mosquitto-dev libmosquitto-dev
# The chaos harness also needs Docker Engine and these.
CHAOSTOOLS  := docker-compose nftables iproute2 procps
# The broker matrix also needs these: brokers of this release, and what makes folders with those of others.
BROKERTOOLS := ejabberd debootstrap openssl
# And these are what the nodes of a Kubernetes cluster consist of, beside what test/k8s builds, and containerd and runc, which come with Docker
# Engine where that is not Debian's.
K8STOOLS    := containernetworking-plugins conntrack iptables iproute2 openssl procps

# Fuzz targets, as package:name.
FUZZ := hlc:FuzzParse resp:FuzzReadRequest resp:FuzzReadReply fsm:FuzzDecodeEntry fsm:FuzzRestore fsm:FuzzFrames fsm:FuzzToken cmd/holdfast:FuzzReadOperations \
	mqttfront/wire:FuzzParsePayload mqttfront/mosquitto:FuzzReadLog internal/glob:FuzzCompile internal/mqttconn:FuzzParsePublish internal/server/httpapi:FuzzParseExportedKey

# The simulation: make sim SEEDS=200 DURATION=2m NODES=0 (drawn: 3 or 5) FIRST=1 SCHEDULE=1. A run is a pair of a seed, of what goes wrong,
# and a schedule, the order in which goroutines run. PAIRS=1 also runs the pairs of all failures that were ever found.
# With a schedule, only that run is made, and not those of 200 seeds.
SEEDS    ?= $(if $(filter command line,$(origin SCHEDULE)),1,200)
SCHEDULE ?= 1
SCHEDULES ?= 1
WITHOUT  ?=
KINDS    ?=
PAIRS    ?=
DURATION ?= 2m
NODES    ?= 0
FIRST    ?= 1
MUTANTS  ?= all
SIMULATE := go run ./test/sim/simulate

# The chaos harness: make chaos SEED=7 NODES=5 DURATION=5m, and perhaps FAULTS=kind,kind or MUTANT=name; SEED=0 draws one.
SEED     ?= 0
DIR      ?= report/chaos
# Brokers of the matrix; empty is all.
ONLY     ?=
FAULTS   ?=
MUTANT   ?=
CHAOS    := go -C test/chaos run .

.PHONY: help build dev test packages test-go test-sdk test-mutants test-page sim sim-long sim-mutants sim-replay sim-shrink chaos chaos-smoke chaos-check chaos-selftest \
	chaos-packages test-chaos soak figures brokers lint fmt fuzz bench-build bench bench-growth bench-smoke bench-processor bench-tls bench-against bench-go allocations binaries image image-all deb test-deb k8s-api test-k8s k8s-packages k8s-images k8s chart-docs clean FORCE

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

build: ## build bin/holdfast, a static binary
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/holdfast ./cmd/holdfast

dev: build ## build, and run the whole product in one process
	./bin/holdfast dev --mirrors '*=mirror/'

test: packages test-go test-sdk ## everything that needs only Go and a few Debian packages, race detector on

chaos-packages: ## install the Debian packages that the chaos harness needs, or name them
	@$(MAKE) --no-print-directory packages PACKAGES="$(PACKAGES) $(CHAOSTOOLS)"

packages: ## install the Debian packages that the tests need, or name them
	@missing=""; for p in $(PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Debian packages:$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --no-remove $$missing >/dev/null; \
	else echo "please install these Debian packages:$$missing"; exit 1; fi

# The integration tests take the longest, and mostly wait: go test begins with the packages that are named first.
test-go: ## unit, property and integration tests
	go test -race -count=1 -timeout 15m ./test/integration ./...

test-sdk: packages ## the protocol's Go client library, unmodified, with holdfast dev and with Mosquitto: open, in production, and with leaders killed
	cd test/sdk && go test -count=1 -timeout 5m ./...
	HOLDFAST_LIBRARIES=1 go test -count=1 -timeout 15m -run TestProtocolsGoLibraryWorks -v ./test/integration | grep -v level=

test-mutants: packages ## show that tests of packages catch the mutants that the simulation cannot (2 minutes)
	HOLDFAST_MUTANTS=1 go test -count=1 -timeout 15m -run TestMutantsAreCaughtByTests ./test/mutants

test-page: ## the status page in Debian's Chromium; its pictures are in report/page (a module of its own)
	@$(MAKE) --no-print-directory packages PACKAGES=chromium
	cd test/page && CI=true go test -count=1 -timeout 5m -v ./...

SIMULATION = $(SIMULATE) -seeds $(SEEDS) -first $(FIRST) -schedule $(SCHEDULE) -schedules $(SCHEDULES) -duration $(DURATION) -nodes $(NODES) -kinds "$(KINDS)" -without "$(WITHOUT)"

sim: ## whole clusters in virtual time with faults drawn from seeds: SEEDS, FIRST, SCHEDULE, SCHEDULES, DURATION, NODES, KINDS, WITHOUT, PAIRS
	$(SIMULATION) $(if $(PAIRS),-pairs)

sim-long: ## the same for hours: 5000 pairs, with seeds from the clock
	$(SIMULATE) -seeds 5000 -first $$(date +%s) -duration $(DURATION) -nodes $(NODES)

sim-replay: ## show that runs repeat: each pair twice, the second time with more logging, every switch between goroutines compared
	$(SIMULATION) -mode replay

sim-shrink: ## leave out faults, clients and virtual time of the first run that fails for as long as it fails: FIRST, SCHEDULE, and perhaps MUTANTS
	$(SIMULATION) -mode shrink -mutants "$(if $(filter file,$(origin MUTANTS)),,$(MUTANTS))"

sim-mutants: ## show that the simulation catches each of the mutants (or MUTANTS=name,name), within SEEDS seeds (up to half an hour)
	$(SIMULATION) -mutants $(MUTANTS)

chaos: chaos-packages ## real containers under faults for DURATION: SEED, NODES; needs root, Docker Engine and docker-compose
	$(CHAOS) run --seed $(SEED) --nodes $(if $(filter 0,$(NODES)),5,$(NODES)) --duration $(if $(filter file,$(origin DURATION)),5m,$(DURATION)) --report $(CURDIR)/$(DIR) --faults "$(FAULTS)" --mutant "$(MUTANT)"

chaos-smoke: chaos-packages ## the same with three nodes and three faults, 90 s
	$(CHAOS) run --smoke --seed $(SEED) --nodes 3 --duration 90s --mutant "$(MUTANT)" --report $(CURDIR)/$(DIR)-smoke

chaos-check: ## judge an old run again: DIR
	$(CHAOS) check $(abspath $(DIR))

chaos-selftest: chaos-packages ## show that the chaos harness catches each of twelve mutants, and leaves the product alone (an hour)
	$(CHAOS) selftest --report $(CURDIR)/$(DIR)-selftest

test-chaos: ## the chaos harness' own tests: its disk needs root and /dev/fuse
	cd test/chaos && go test -race -count=1 -timeout 5m ./...

soak: ## the embedded broker for 30 s at 256 outstanding requests
	HOLDFAST_SOAK=30s go test -race -count=1 -timeout 5m -run TestManyRequestsAtOnceDoNotHangTheBroker -v ./mqttfront/embedded

figures: ## measure: a million keys, one node beside three, idle nodes, 20 repetitions of each failure (45 minutes)
	HOLDFAST_FIGURES=1000000 go test -count=1 -timeout 50m -run 'TestFiguresNodeWithManyKeys|TestFiguresThroughput|TestFiguresDiskBytesPerSet|TestFiguresIdle' -v ./test/integration | grep -v level=
	HOLDFAST_REPEAT=20 go test -count=1 -timeout 20m -run TestFailoverFailsNoRequest -v ./test/integration | grep -v level=

brokers: ## real brokers, of this Debian and of newer ones in folders that debootstrap makes (2 minutes once), and the page about Mosquitto: ONLY=name,name; needs root (15 minutes)
	@$(MAKE) --no-print-directory packages PACKAGES="$(PACKAGES) $(BROKERTOOLS)"
	mkdir -p report && cd test/brokers && go build -o ../../bin/brokers . && cd ../.. && bin/brokers --output report/brokers --only "$(ONLY)"

K8S := $(CURDIR)/test/k8s

deb: binaries ## Debian packages for amd64 and arm64, in report
	mkdir -p report
	for arch in $(ARCHITECTURES); do ARCH=$$arch VERSION=$(DEBVERSION) $(NFPM) package --config deploy/debian/nfpm.yaml --packager deb --target report/holdfast_$$arch.deb || exit 1; done

test-deb: deb ## what is in the package, and that systemd would isolate it well
	@$(MAKE) --no-print-directory packages PACKAGES=systemd
	deploy/debian/check report/holdfast_$(ARCH).deb

k8s-api: ## build Helm, kubectl, etcd and the Kubernetes API server once (6 minutes)
	$(K8S)/build.sh api

test-k8s: k8s-api ## the Helm chart: lint, templates, alerts, and a real API server
	@$(MAKE) --no-print-directory packages PACKAGES=prometheus
	cd $(K8S) && CI=true go test -count=1 -timeout 5m ./...

k8s-packages: ## install the Debian packages that the Kubernetes cluster needs, or name them
	@$(MAKE) --no-print-directory packages PACKAGES="$(PACKAGES) $(K8STOOLS) $(if $(shell command -v containerd),,containerd) $(if $(shell command -v runc),,runc)"

k8s-images: ## images of two versions of this tree, and what a cluster needs beside, in report/k8s
	mkdir -p report/k8s
	$(MAKE) --no-print-directory image VERSION=0.1.0 IMAGE=holdfast:0.1.0
	$(MAKE) --no-print-directory image VERSION=0.1.1 IMAGE=holdfast:0.1.1
	cd $(K8S)/cluster/pause && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $(CURDIR)/report/k8s/pause . && docker build -q -t pause:1 -f Dockerfile $(CURDIR)/report/k8s
	docker save -o report/k8s/images.tar holdfast:0.1.0 holdfast:0.1.1 pause:1

k8s: k8s-packages k8s-images ## a real Kubernetes cluster of five nodes, in which the chart lives under load; needs root, Docker Engine, and 10 minutes once to build it
	$(K8S)/build.sh full
	cd $(K8S) && trap cluster/cluster.sh\ down EXIT && HOLDFAST_K8S=full go test -count=1 -timeout 20m -run TestChartServesThroughAllOperations -v .

chart-docs: k8s-api ## make the chart's README from its values
	$$($(K8S)/build.sh folder)/helm-docs --chart-search-root helm

lint: ## formatting, lines of at most 100 columns, vet and staticcheck; fails when something is to be said
	@unformatted="$$($(GOFUMPT) -l .)"; if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi
	@go run ./test/wrap
	go vet ./... && $(STATICCHECK) ./...
	cd test/sdk && go vet ./... && $(STATICCHECK) ./...
	cd test/chaos && go vet ./... && $(STATICCHECK) ./...
	cd test/bench && go vet ./... && $(STATICCHECK) ./...
	cd test/k8s && go vet ./... && $(STATICCHECK) ./...
	cd test/page && go vet ./... && $(STATICCHECK) ./...
	cd test/brokers && go vet ./... && $(STATICCHECK) ./...
	go vet -tags replay ./test/sim/...

fmt: ## format all Go code, and break lines of more than 100 columns
	for i in 1 2; do $(GOFUMPT) -w . && go run ./test/wrap -w $$(git ls-files '*.go'); done
	$(GOFUMPT) -w .

fuzz: ## run each fuzz target FUZZTIME, such as 300000x
	@set -e; for target in $(FUZZ); do \
		echo "fuzz $$target: $(FUZZTIME)"; \
		go test -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime $(FUZZTIME) ./$${target%%:*}; done

bench-build: packages build
	cd test/bench && go build -o ../../bin/bench .

bench: bench-build ## Holdfast beside etcd, NATS JetStream KV, bare raft and the broker alone, in one run (a quarter of an hour); writes report/bench
	bin/bench compare --output report/bench $(BENCHFLAGS)

bench-growth: bench-build ## what grows with keys, values, members, watchers and clients (a quarter of an hour); writes report/bench
	bin/bench growth --output report/bench $(BENCHFLAGS)

bench-smoke: bench-build ## that the bench against the peers works: one short round
	bin/bench compare --output report/bench-smoke --rounds 1 --outstanding 16 --duration 1s --warmup 200ms

bench-processor: bench-build ## the processor time for a SET beside an echo's; fails when it has grown by more than 15 %
	bin/bench processor --output report/bench-processor --duration 2s --warmup 500ms

AGAINST ?= HEAD~1
bench-against: bench-build ## SETs on this build beside that of another commit, AGAINST=HEAD~1, in one run (seven minutes)
	rm -rf report/bench-against && mkdir -p report/bench-against/source
	git archive $(AGAINST) | tar -x -C report/bench-against/source
	cd report/bench-against/source && CGO_ENABLED=0 go build -trimpath -o ../holdfast ./cmd/holdfast && cd .. && rm -r source
	bin/bench against report/bench-against/holdfast --output report/bench-against $(BENCHFLAGS)

bench-tls: bench-build ## SETs with TLS to the broker beside SETs without; fails below 0.7 (a minute and a half)
	bin/bench tls --output report/bench-tls --rounds 3 --duration 1500ms

bench-go: ## micro-benchmarks of the hot paths, six times, for benchstat
	go test -run '^$$' -bench . -benchmem -count 6 ./fsm ./resp ./internal/glob ./mqttfront/leader ./mqttfront/wire ./internal/mqttconn

allocations: ## fail when a SET allocates more than it did (without the race detector, which allocates, too)
	HOLDFAST_ALLOCATIONS=1 go test -count=1 -run Allocat -v ./fsm ./mqttfront/leader ./internal/mqttconn ./resp

bin/linux-%/holdfast: FORCE
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $@ ./cmd/holdfast

bin/linux-%/holdfast.cdx.json: bin/linux-%/holdfast
	go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0 bin -json -std -noserial -version $(VERSION) -output $@ $<

.PRECIOUS: bin/linux-%/holdfast
FORCE:

binaries: $(foreach arch,$(ARCHITECTURES),bin/linux-$(arch)/holdfast.cdx.json) ## static binaries for all architectures, each with a bill of materials (CycloneDX)

image: bin/linux-$(ARCH)/holdfast.cdx.json ## build the container image for this architecture, FROM scratch; needs Docker, and no registry
	docker build --build-arg TARGETARCH=$(ARCH) --build-arg VERSION=$(VERSION) --build-arg REVISION=$(REVISION) -t $(IMAGE) .

image-all: binaries ## build and push the image for all architectures; needs BuildKit, and a registry in IMAGE
	VERSION=$(VERSION) REVISION=$(REVISION) IMAGE=$(IMAGE) docker buildx bake --push

clean: ## remove what was built
	rm -rf bin
