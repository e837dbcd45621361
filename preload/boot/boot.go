// Package boot defers the Go runtime's start. The linker's -E smcr_rt0 has Go put smcr_rt0 where the runtime's own entry would
// stand, and preload/layout.ld keeps that out of .init_array. C calls it when a connection needs the engine: it tells where the
// runtime's entry and a few of its variables are. The variables are edited before the start, see preload/start.c.
package boot
