//go:build interop

package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/tests/packet"
)

// stream is one direction of a connection, put together from segments that may be lost, repeated or reordered.
type stream struct {
	mark    byte // '>' from the client, '<' from the server
	next    uint32
	pending []packet.TCP
	bytes   []byte // not yet told of
	plain   bool   // CLC is over
}

func (s *stream) add(p packet.TCP) {
	s.pending = append(s.pending, p)
	for i := 0; i < len(s.pending); i++ {
		p := s.pending[i]
		if known := int32(s.next - p.Seq); known >= 0 && int(known) < len(p.Data) {
			s.bytes = append(s.bytes, p.Data[known:]...)
			s.next = p.Seq + uint32(len(p.Data))
			i = -1 // others may fit now
		}
	}
}

// messages takes whole CLC messages off the stream and tells them: sender, type, byte 7, length, why one declines.
func (s *stream) messages(t *testing.T) (told []string) {
	t.Helper()
	for !s.plain {
		h, err := clc.Peek(s.bytes)
		if errors.Is(err, clc.ErrShort) || err == nil && len(s.bytes) < h.Length {
			break
		}
		if err != nil {
			s.plain = true
			break
		}
		line := fmt.Sprintf("%c %s %02x %d", s.mark, h.Type, s.bytes[7], h.Length)
		switch h.Type {
		case clc.TypeProposal:
			err = new(clc.Proposal).Decode(smc.Linux, s.bytes)
		case clc.TypeAccept:
			err = new(clc.Accept).Decode(s.bytes)
		case clc.TypeConfirm:
			err = new(clc.Confirm).Decode(smc.Linux, s.bytes)
		case clc.TypeDecline:
			var m clc.Decline
			err = m.Decode(s.bytes)
			line += fmt.Sprintf(" %08x", uint32(m.Diagnosis))
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		told = append(told, line)
		s.bytes = s.bytes[h.Length:]
	}
	return told
}

// wire tells what passed between the machines on each connection to a port: who carried the option, and CLC as it came.
func (m *machines) wire(t *testing.T, port int) (told [][]string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, "link0.pcap"))
	if err != nil {
		t.Fatal(err)
	}
	const head, record, ethernet = 24, 16, 14
	numbers := map[netip.AddrPort]int{} // of connections, by client
	streams := map[netip.AddrPort][2]*stream{}
	for b = b[min(head, len(b)):]; len(b) > record; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if len(b) < record+n {
			break // is being written
		}
		frame := b[record : record+n]
		b = b[record+n:]
		p, ok := packet.Parse(frame[min(ethernet, n):])
		if !ok {
			continue
		}
		client, from := p.From, 0
		switch port {
		case int(p.To.Port()):
		case int(p.From.Port()):
			client, from = p.To, 1
		default:
			continue
		}
		number, known := numbers[client]
		both := streams[client]
		switch {
		case p.Flags&packet.SYN == 0:
			if p.SMC {
				t.Errorf("the option without SYN: %+v", p)
			}
			if s := both[from]; s != nil {
				s.add(p)
				told[number] = append(told[number], s.messages(t)...)
			}
		case both[from] != nil: // repeated
		default:
			if !known {
				number = len(told)
				numbers[client] = number
				told = append(told, nil)
			}
			line := []string{"> SYN", "< SYN-ACK"}[from]
			if p.SMC {
				line += " SMC"
			}
			told[number] = append(told[number], line)
			both[from] = &stream{mark: "><"[from], next: p.Seq + 1}
			streams[client] = both
		}
	}
	return told
}
