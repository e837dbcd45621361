package engine

import (
	"testing"
	"unsafe"
)

// `struct rmbe_head` of hooks/shim.h, field by field.
func TestHeadHasTheLayoutOfC(t *testing.T) {
	var h Head
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"size", unsafe.Sizeof(h), 256},
		{"prod", unsafe.Offsetof(h.Prod), 0}, {"wflags", unsafe.Offsetof(h.WFlags), 8}, {"wcpu", unsafe.Offsetof(h.WCPU), 12},
		{"urg", unsafe.Offsetof(h.Urg), 16}, {"wtag", unsafe.Offsetof(h.WTag), 24},
		{"cons", unsafe.Offsetof(h.Cons), 64}, {"rcpu", unsafe.Offsetof(h.RCPU), 72}, {"rflags", unsafe.Offsetof(h.RFlags), 136},
		{"token", unsafe.Offsetof(h.Token), 140}, {"rtag", unsafe.Offsetof(h.RTag), 144},
		{"rarm", unsafe.Offsetof(h.RArm), 128}, {"warm", unsafe.Offsetof(h.WArm), 192},
	} {
		if c.got != c.want {
			t.Errorf("%s is at %d, C has %d", c.name, c.got, c.want)
		}
	}
}
