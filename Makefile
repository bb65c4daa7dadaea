TIMEOUT ?= 15m
PKG ?= ./...
ARGS ?=
STATICCHECK_VERSION ?= v0.7.0

SERVERS := .ci/servers run --
GO_TEST := go test -count=1 -timeout $(TIMEOUT) $(ARGS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-zA-Z_-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PKG=./middleware tests one package, ARGS='-run TestX' is passed to go test, TIMEOUT=$(TIMEOUT) is each"
	@echo "  package's limit. How the servers are found: .ci/servers help"

.PHONY: test
test: compiler ## everything, with -race, against real servers, which it brings up where they are not there
	$(SERVERS) $(GO_TEST) -race $(PKG)

.PHONY: test_v
test_v: compiler ## as test, verbose
	$(SERVERS) $(GO_TEST) -race -v $(PKG)

.PHONY: test_short
test_short: ## with -short and without -race
	$(SERVERS) $(GO_TEST) -short $(PKG)

.PHONY: test_race
test_race: compiler ## with -short and -race
	$(SERVERS) $(GO_TEST) -short -race $(PKG)

.PHONY: test_codecov
test_codecov: compiler ## as test, and writes coverage.out
	$(SERVERS) $(GO_TEST) -race -coverpkg=./... -coverprofile=coverage.out -covermode=atomic $(PKG)

.PHONY: test-embedded
test-embedded: ## only what needs no server, and nothing but Go
	$(GO_TEST) -tags embedded $(PKG)

.PHONY: compiler
compiler:
	@.ci/compiler

.PHONY: soak
soak: ## minutes of outage and SIGKILL under load, against real servers
	$(SERVERS) $(GO_TEST) -tags soak -run Soak -v ./sqlinbox

.PHONY: bench
bench: ## the benchmarks, against real servers
	$(SERVERS) go test -run '^$$' -bench . -benchmem -timeout $(TIMEOUT) $(ARGS) $(PKG)

.PHONY: up
up: ## servers for the tests that stay until make down (needs Docker)
	docker compose -f .ci/docker-compose.yml up -d --wait

.PHONY: down
down: ## stops what make up started
	docker compose -f .ci/docker-compose.yml down -v

.PHONY: build
build: ## compiles every package
	go build ./...

.PHONY: fmt
fmt: ## formats the code
	gofmt -w .

.PHONY: vet
vet: ## go vet, also of what only some build tags compile
	go vet ./...
	go vet -tags embedded ./...
	go vet -tags soak ./...
	go vet .ci/probe/main.go

.PHONY: staticcheck
staticcheck: ## staticcheck at a pinned version
	go run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION) ./...

.PHONY: readme
readme: ## checks that the commands, code and links of README.md are real
	.ci/check-readme

.PHONY: ci
ci: ## all that CI runs
	.ci/run
