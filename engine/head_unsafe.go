package engine

import (
	"sync/atomic"
	"unsafe"
)

// headAt views the first HeadSize bytes of shared memory as a Head; it panics if there are fewer.
func headAt(b []byte) *Head { return (*Head)(unsafe.Pointer(&b[:HeadSize][0])) }

func (h *Head) loadToken() uint32 { return atomic.LoadUint32(&h.Token) }

// begin makes the head that of a new connection. The token comes last.
func (h *Head) begin(token uint32) {
	words := (*[HeadSize / 8]uint64)(unsafe.Pointer(h))
	for i := range words {
		atomic.StoreUint64(&words[i], 0)
	}
	atomic.StoreUint32(&h.Token, token)
}

func (h *Head) setWriterClosed()      { atomic.OrUint32(&h.WFlags, WriterClosed) }
func (h *Head) setReaderClosed()      { atomic.OrUint32(&h.RFlags, ReaderClosed) }
func (h *Head) writerFlags() uint32   { return atomic.LoadUint32(&h.WFlags) }
func (h *Head) readerClosed() bool    { return atomic.LoadUint32(&h.RFlags)&ReaderClosed != 0 }
func (h *Head) flagWriter(f uint32)   { atomic.OrUint32(&h.WFlags, f) }
func (h *Head) unflagWriter(f uint32) { atomic.AndUint32(&h.WFlags, ^f) }
func (h *Head) prod() uint64          { return atomic.LoadUint64(&h.Prod) }
func (h *Head) cons() uint64          { return atomic.LoadUint64(&h.Cons) }
func (h *Head) urg() uint64           { return atomic.LoadUint64(&h.Urg) }
func (h *Head) setProd(p uint64)      { atomic.StoreUint64(&h.Prod, p) }
func (h *Head) setCons(p uint64)      { atomic.StoreUint64(&h.Cons, p) }
func (h *Head) setUrg(p uint64)       { atomic.StoreUint64(&h.Urg, p) }
func (h *Head) neverWritten() bool    { return atomic.LoadUint64(&h.Prod) == 0 && h.writerFlags() == 0 }
