//go:build race

package engine

// The race detector makes a simulation ten times slower, and the engine has one goroutine: it gets a sample. All steps and
// seeds run without it, see scripts/test.
const (
	stride = 7 // of how many steps that are to fail one does
	seeds  = 60
)
