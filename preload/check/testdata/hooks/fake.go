// Package hooks is a stand-in, see fake.c.
package hooks

/*
#cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -O2 -fvisibility=hidden
#include "shim.h"
void fake_answer(u64 n);
*/
import "C"

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

//export smcr_go_main
func smcr_go_main(p unsafe.Pointer) C.int {
	s := (*C.struct_shim)(p)
	ev := syscall.EpollEvent{Events: syscall.EPOLLIN}
	if syscall.EpollCtl(int(s.epfd), syscall.EPOLL_CTL_ADD, int(s.wakefd), &ev) != nil {
		return -C.R_ENGINE
	}
	go loop(s)
	return 0
}

var sink []byte

// faults is true if a fault in Go is a panic that can be recovered.
func faults() (ok bool) {
	defer func() { ok = recover() != nil }()
	var p *int
	*p = 1
	return false
}

// loop needs what a real engine needs: memory, collections, another goroutine, a timer.
func loop(s *C.struct_shim) {
	C.life_make_spare()
	asleep := (*uint32)(unsafe.Pointer(&s.engine_asleep))
	done := make(chan bool)
	n := 0
	for {
		atomic.StoreUint32(asleep, 1)
		wait := -1
		for r := (C.struct_req{}); C.queue_take(&r) != 0; wait = 0 {
			sink = make([]byte, 4096)
			switch n++; {
			case n == 1 && !faults():
				continue // no answer: the test fails
			case n%64 == 0:
				runtime.GC()
			case n%16 == 0:
				go func() { time.Sleep(50 * time.Microsecond); done <- true }()
				<-done
			}
			C.fake_answer(r.arg)
		}
		var evs [4]syscall.EpollEvent
		k, _ := syscall.EpollWait(int(s.epfd), evs[:], wait)
		atomic.StoreUint32(asleep, 0)
		if k > 0 {
			var b [8]byte
			_, _ = syscall.Read(int(s.wakefd), b[:])
		}
	}
}
