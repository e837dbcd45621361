// Package main is libsmcr.so: libc's names in C (symbols.h lists them), and the engine behind them, started when it is needed.
package main

//go:generate cc -E -P -x c exports.in -o exports.map

/*
#cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -O2 -fvisibility=hidden -Wall -Wextra -U_FORTIFY_SOURCE
*/
import "C"

import (
	"runtime"
	"sync"

	_ "libsmcr/hooks"        // the engine's loop and the h_ functions
	_ "libsmcr/preload/boot" // the entry of the runtime
)

// The C files here and those of package hooks call each other. Each package's objects are therefore incomplete by themselves, which
// cgo's trial link of one package allows (it only notes that the final link must be the external one); they meet in that link.
// A header of this folder is no input of package hooks for go build's cache: after a change of symbols.h or real.h, hooks
// must be rebuilt (make build passes a hash of them in CGO_CFLAGS). After the link, postlink spares programs that never need the
// engine the relocation of Go's data.

// smcr_go_probe is what a trial of the runtime does before the process itself starts it (start.c): it needs what the engine
// will need, threads, memory and a collection, and the runtime ends the trial's process if it cannot get them.
//
//export smcr_go_probe
func smcr_go_probe() C.int {
	const threads, block = 8, 1 << 20
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	ready.Add(threads)
	done.Add(threads)
	for range threads {
		go func() {
			runtime.LockOSThread()
			defer done.Done()
			probe := make([]byte, block)
			probe[0] = 1
			ready.Done()
			<-release
			runtime.KeepAlive(probe)
		}()
	}
	ready.Wait()
	runtime.GC()
	close(release)
	done.Wait()
	return 0
}

func main() {}
