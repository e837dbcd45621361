package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"libsmcr/abi/clc"
	"libsmcr/abi/host"
)

// connection is one line of smcr ss.
type connection struct {
	PID      int    `json:"pid"`
	Comm     string `json:"comm"`
	FD       int32  `json:"fd"`
	Local    string `json:"local"`
	Peer     string `json:"peer"`
	Role     string `json:"role"`
	Mode     string `json:"mode"`
	Reason   string `json:"reason"`
	Provider string `json:"provider"`
	Source   string `json:"source"` // who told that the peer speaks SMC-R: kernel, registry, rules; "" = nobody yet
	RMBE     uint64 `json:"rmbe"`   // bytes of our receive element, 0 = none yet
	Tx       uint64 `json:"tx_bytes"`
	Rx       uint64 `json:"rx_bytes"`

	state     string
	diagnosis clc.DeclineCode
}

func newSS() *cobra.Command {
	var asJSON, all, wide bool
	c := &cobra.Command{
		Use:   "ss",
		Short: "Show the connections of your programs",
		Long: "Shows the live connections of all your processes that run under the library, and how many connections each process\n" +
			"left to TCP, with the reasons.\n\n" +
			"State is that of the SMC-R connection as smcss names it. RMBE is the size of the receive buffer; Tx and Rx count what\n" +
			"went over SMC-R. Source is who told that the peer speaks SMC-R: the kernel hook (smcr enable), the registry of this host, or\n" +
			"a rule. --json gives the connections as an array; with -a an object that holds them and the processes.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := runDir()
			if err == nil {
				err = checkDir(dir)
			}
			switch {
			case errors.Is(err, fs.ErrNotExist) && os.Getenv("SMCR_RUN_DIR") != "": // a wrong name looks like an idle host
				fmt.Fprintf(c.ErrOrStderr(), "smcr: %s does not exist: no process was started with this SMCR_RUN_DIR\n", dir)
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				return err
			}
			found, problems := readPages(dir)
			for _, p := range problems {
				fmt.Fprintf(c.ErrOrStderr(), "smcr: %v\n", p)
			}
			found = slices.DeleteFunc(found, func(p process) bool { return !p.alive })
			conns, procs := connections(found), newReport(found)
			switch {
			case asJSON && all:
				return writeJSON(c.OutOrStdout(), struct {
					Connections []connection    `json:"connections"`
					Processes   []processReport `json:"processes"`
				}{conns, procs.Processes})
			case asJSON:
				return writeJSON(c.OutOrStdout(), conns)
			}
			writeConnections(c.OutOrStdout(), conns, wide)
			if all {
				writeProcesses(c.OutOrStdout(), found)
			}
			writeFallbacks(c.OutOrStdout(), procs.Processes)
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVarP(&all, "all", "a", false, "show all processes too, also those without a connection")
	f.BoolVarP(&wide, "wide", "W", false, "do not cut addresses")
	return c
}

// connections lists what is in the blocks, by process and fd.
func connections(found []process) []connection {
	conns := []connection{}
	for i := range found {
		p := &found[i]
		first := len(conns)
		for j := range p.blocks {
			b := &p.blocks[j]
			c := connection{
				PID: p.pid, Comm: p.comm, FD: b.FD, Local: address(b.Local()), Peer: address(b.PeerEnd()), Role: b.Role.String(),
				Mode: mode(b.State), Reason: b.Reason.String(), Provider: printable(b.ProviderName()), Source: b.Source.String(), RMBE: b.RxSize,
				Tx: b.TxBytes, Rx: b.RxBytes, state: smcState(b), diagnosis: clc.DeclineCode(b.Diagnosis),
			}
			// A forked child that took the connection over.
			if pid := int(b.PID); pid != p.pid && pid > 0 && p.here {
				if _, ok := identify(pid); ok {
					c.PID, c.Comm = pid, command(pid, p.comm)
				}
			}
			conns = append(conns, c)
		}
		slices.SortStableFunc(conns[first:], func(a, b connection) int {
			return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.FD, b.FD))
		})
	}
	return conns
}

func address(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// mode says who carries the bytes.
func mode(s host.ConnState) string {
	switch s {
	case host.Active:
		return "smc"
	case host.Flush, host.TCP:
		return "tcp"
	}
	return "negotiating"
}

// smcState names a connection's state as smcss does: the states of RFC 7609 §4.8.1 in Linux' abbreviations.
func smcState(b *host.Block) string {
	if b.State != host.Active {
		if mode(b.State) == "tcp" {
			return "ACTIVE"
		}
		return "INIT"
	}
	local, peer := b.Flags&host.ShutWR != 0, b.Flags&(host.FIN|host.Gone) != 0
	switch {
	case b.Flags&(host.Reset|host.Broken) != 0:
		return "PROCESSABORT"
	case local && peer:
		return "PEERCLW2"
	case local:
		return "PEERCLW1"
	case peer:
		return "APPLCLW1"
	}
	return "ACTIVE"
}

// shorten cuts an address that is longer than any of IPv4, as smcss does.
func shorten(s string, wide bool) string {
	const room = len("255.255.255.255:65535")
	if wide || len(s) <= room {
		return s
	}
	return s[:room-2] + ".."
}

func writeConnections(w io.Writer, conns []connection, wide bool) {
	t := newTable(w, "State", "Local Address", "Peer Address", "Mode", "Provider", "Source", "Reason", "PID/Command", "fd", "RMBE", "Tx", "Rx")
	t.right("fd", "RMBE", "Tx", "Rx")
	for i := range conns {
		c := &conns[i]
		reason := c.Reason
		if reason == host.ReasonNone.String() {
			reason = "-"
		}
		if c.diagnosis != 0 {
			reason += " " + c.diagnosis.String()
		}
		fd, rmbe := "-", "-"
		if c.FD >= 0 {
			fd = fmt.Sprint(c.FD)
		}
		if c.RMBE > 0 {
			rmbe = size(c.RMBE)
		}
		colour := map[string]text.Color{"smc": text.FgGreen, "tcp": text.FgYellow}[c.Mode]
		t.row(c.state, shorten(cmp.Or(c.Local, "-"), wide), shorten(cmp.Or(c.Peer, "-"), wide), t.paint(colour, c.Mode),
			cmp.Or(c.Provider, "-"), cmp.Or(c.Source, "-"), reason, fmt.Sprintf("%d/%s", c.PID, c.Comm), fd, rmbe, size(c.Tx), size(c.Rx))
	}
	t.write()
}

func writeProcesses(w io.Writer, found []process) {
	fmt.Fprintln(w)
	t := newTable(w, "PID/Command", "Engine", "Live", "SMC-R", "TCP", "Rings", "Tx", "Rx")
	t.right("Live", "SMC-R", "TCP", "Rings", "Tx", "Rx")
	for i := range found {
		p := &found[i]
		engine := p.page.Engine.String()
		if p.page.Engine == host.Dead {
			engine += ": " + p.page.EngineReason.String()
		}
		c := p.counts()
		t.row(fmt.Sprintf("%d/%s", p.pid, p.comm), engine, len(p.blocks), c.SMC, c.TCP, size(p.page.RingBytes), size(c.Tx), size(c.Rx))
	}
	t.write()
}

// writeFallbacks lists what left the first table: a connection that stays TCP is the kernel's alone.
func writeFallbacks(w io.Writer, procs []processReport) {
	t := newTable(w, "Left to TCP by", "Reason", "Connections")
	t.right("Connections")
	any := false
	for i := range procs {
		p := &procs[i]
		for _, reason := range p.reasons() {
			t.row(fmt.Sprintf("%d/%s", p.PID, p.Comm), reason, p.Fallbacks[reason])
			any = true
		}
	}
	if any {
		fmt.Fprintln(w)
		t.write()
	}
}
