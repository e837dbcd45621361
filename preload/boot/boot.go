// Package boot defers the Go runtime's start. The linker's -E smcr_rt0 puts smcr_rt0 into .init_array where the runtime's own
// entry would stand; it only tells C where the runtime's entry and a few of its variables are, and C starts the runtime when a
// connection needs the engine. The variables are edited before that, see preload/start.c.
package boot
