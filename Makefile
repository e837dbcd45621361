# make TARGET; make help lists them.
.DEFAULT_GOAL := build
.PHONY: build demo test interop check bench fuzz hostile soak clean help library ldflags

T ?=
N ?= 5
ROW ?=
ARGS ?=

OUT = build/libsmcr.so
MAP = $(abspath $(OUT)).map
LDFLAGS = -s -w -checklinkname=0 -E smcr_rt0 -X runtime.godebugDefault=asyncpreemptoff=1 \
	-extldflags '-Wl,--version-script=$(CURDIR)/preload/exports.map -Wl,-Bsymbolic -Wl,-z,nodelete -Wl,-z,defs -Wl,-z,norelro -Wl,-z,noseparate-code -Wl,-T,$(CURDIR)/preload/layout.ld -nostartfiles -Wl,-Map=$(MAP)'
# Go's build cache does not see that one package's C includes another's headers: their hash is in the flags.
HEADERS = $(shell cat preload/*.h preload/layout.ld hooks/*.h | cksum | cut -d' ' -f1)

build: library ## build/libsmcr.so and build/smcr
	CGO_ENABLED=0 go build -trimpath -o build/smcr ./cmd/smcr

library:
	@mkdir -p $(dir $(OUT))
	CGO_CFLAGS="-O2 -g -DSMCR_HEADERS=$(HEADERS) $(DEFS)" go build -buildmode=c-shared -trimpath -o $(OUT).new.so -ldflags "$(LDFLAGS)" ./preload
	go run ./preload/postlink $(OUT).new.so $(MAP)
	@mv $(OUT).new.so $(OUT) # whole at once: programs may have the old one mapped
	@rm -f $(OUT).new.h $(MAP)

demo: ## redis, iperf3, memcached and sockperf over TCP and over SMC-R, in one table
	@scripts/demo

test: build ## all tests that need no virtual machine; ARGS='-run Redis' chooses
	@go run ./scripts/test all $(ARGS)

interop: build ## our programs against the kernel's SMC, in the virtual machines of RIG (root)
	@go run ./scripts/test interop $(ARGS)

check: build ## static: format, vet, locks, lint, imports, exports, C warnings, stale files
	@scripts/check

bench: build ## figures against TCP, medians of N=5; ROW=redis-c1 chooses
	@go run ./scripts/bench -n $(N) -row "$(ROW)"

fuzz: ## every fuzz target for T=30s
	@scripts/fuzz $(or $(T),30s)

hostile: build ## a session of a real pair said again, changed at random, for T=10m
	@go test -count=1 -v -timeout=0 -run='^TestRecordedSessions' ./tests -hostile.time=$(or $(T),10m)

soak: build ## random simulations and the black-box tests again and again for T=10m
	@scripts/soak $(or $(T),10m)

clean: ## remove what was built
	rm -rf build

ldflags: # for those who build the library elsewhere
	@:$(info $(LDFLAGS))

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10
