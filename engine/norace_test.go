//go:build !race

package engine

const (
	stride = 1
	seeds  = 500
)
