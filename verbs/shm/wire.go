package shm

import (
	"encoding/binary"

	"libsmcr/abi/roce"
)

// Types of datagrams. 1 and 2 are not ours, see the package comment.
const (
	typeSend   = 3
	typeExport = 4
	typeGone   = 5
)

// Sizes of headers and bodies.
const (
	headerSize = 8
	sendHead   = 16
	exportSize = 32
	goneSize   = 8
	maxMessage = 8192 // the longest LLC message (ADD LINK of SMC-R v2) has 4152 bytes
	maxDgram   = headerSize + sendHead + maxMessage
)

// AppendHeader starts a datagram: type and length of the body that the caller appends.
func AppendHeader(b []byte, typ uint32, body int) []byte {
	b = binary.LittleEndian.AppendUint32(b, typ)
	return binary.LittleEndian.AppendUint32(b, uint32(body))
}

// open checks the framing: the body has exactly the length that the header says.
func open(b []byte) (typ uint32, body []byte, ok bool) {
	if len(b) < headerSize || uint64(binary.LittleEndian.Uint32(b[4:])) != uint64(len(b)-headerSize) {
		return 0, nil, false
	}
	return binary.LittleEndian.Uint32(b), b[headerSize:], true
}

// route is what the bodies of SEND, EXPORT and GONE begin with.
type route struct {
	dst, src roce.QPN
}

func (r route) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.dst))
	return binary.LittleEndian.AppendUint32(b, uint32(r.src))
}

// routeAt reads the first eight bytes of a body; QPNs have 24 bits.
func routeAt(b []byte) (route, bool) {
	if len(b) < goneSize {
		return route{}, false
	}
	r := route{roce.QPN(binary.LittleEndian.Uint32(b)), roce.QPN(binary.LittleEndian.Uint32(b[4:]))}
	return r, r.dst <= roce.QPNMask && r.src <= roce.QPNMask
}

func appendSend(b []byte, r route, psn roce.PSN, msg []byte) []byte {
	b = r.append(AppendHeader(b, typeSend, sendHead+len(msg)))
	b = binary.LittleEndian.AppendUint32(b, uint32(psn))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return append(b, msg...)
}

func sendAt(body []byte) (psn roce.PSN, msg []byte, ok bool) {
	if len(body) < sendHead || len(body) > sendHead+maxMessage {
		return 0, nil, false
	}
	psn = roce.PSN(binary.LittleEndian.Uint32(body[8:]))
	return psn, body[sendHead:], psn <= roce.PSNMask
}

// region is what an EXPORT says about the memory behind its descriptor.
type region struct {
	key  roce.RKey
	addr roce.VAddr
	size uint64
}

// has reports whether the region contains the address. It is only asked of regions that passed valid.
func (g region) has(a roce.VAddr) bool { return a >= g.addr && uint64(a-g.addr) < g.size }

// slice returns n bytes at an address, nil if they are not all inside.
func (g region) slice(mem []byte, a roce.VAddr, n int) []byte {
	if !g.has(a) || uint64(n) > g.size-uint64(a-g.addr) {
		return nil
	}
	return mem[a-g.addr:][:n]
}

// maxRegion bounds the address space that one region of a peer can take: 32 elements of the largest size, 512 MiB.
const maxRegion = 16 << 30

// valid: whole pages, a sane size, no wrap around the end of the address space.
func (g region) valid() bool {
	return g.size > 0 && g.size <= maxRegion && g.size%pageSize == 0 && uint64(g.addr)+g.size > uint64(g.addr)
}

func appendExport(b []byte, r route, g region) []byte {
	b = r.append(AppendHeader(b, typeExport, exportSize))
	b = binary.LittleEndian.AppendUint32(b, uint32(g.key))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(g.addr))
	return binary.LittleEndian.AppendUint64(b, g.size)
}

func exportAt(body []byte) (region, bool) {
	if len(body) != exportSize {
		return region{}, false
	}
	g := region{
		key:  roce.RKey(binary.LittleEndian.Uint32(body[8:])),
		addr: roce.VAddr(binary.LittleEndian.Uint64(body[16:])),
		size: binary.LittleEndian.Uint64(body[24:]),
	}
	return g, g.valid()
}

func appendGone(b []byte, r route) []byte { return r.append(AppendHeader(b, typeGone, goneSize)) }
