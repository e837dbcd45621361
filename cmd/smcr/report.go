package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"libsmcr/abi/host"
)

// counts is what one process, or all of a report, did.
type counts struct {
	SMC       uint64            `json:"smc_connections"`
	TCP       uint64            `json:"tcp_connections"`
	Fallbacks map[string]uint64 `json:"fallbacks"`
	Tx        uint64            `json:"tx_bytes"` // over SMC-R
	Rx        uint64            `json:"rx_bytes"`
}

type processReport struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	counts
	running bool
}

type report struct {
	Processes []processReport `json:"processes"`
	Totals    counts          `json:"totals"`
}

func newReport(found []process) report {
	r := report{Processes: []processReport{}, Totals: counts{Fallbacks: map[string]uint64{}}}
	for i := range found {
		p := &found[i]
		c := p.counts()
		r.Processes = append(r.Processes, processReport{PID: p.pid, Comm: p.comm, counts: c, running: p.alive && p.here})
		r.Totals.SMC += c.SMC
		r.Totals.TCP += c.TCP
		r.Totals.Tx += c.Tx
		r.Totals.Rx += c.Rx
		for reason, n := range c.Fallbacks {
			r.Totals.Fallbacks[reason] += n
		}
	}
	return r
}

// counts adds the connections that are still in blocks to what the page says of those that ended.
func (p *process) counts() counts {
	c := counts{SMC: p.page.SMCConns, TCP: p.page.TCPConns, Fallbacks: map[string]uint64{}, Tx: p.page.TxBytes, Rx: p.page.RxBytes}
	for reason, n := range p.page.Fallbacks {
		if n > 0 {
			c.Fallbacks[host.Reason(reason).String()] = n
		}
	}
	for i := range p.blocks {
		c.Tx += p.blocks[i].TxBytes
		c.Rx += p.blocks[i].RxBytes
	}
	return c
}

// reasons lists the fallbacks, the most frequent first.
func (c *counts) reasons() []string {
	keys := make([]string, 0, len(c.Fallbacks))
	for reason := range c.Fallbacks {
		keys = append(keys, reason)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.Fallbacks[b], c.Fallbacks[a]), strings.Compare(a, b))
	})
	return keys
}

func (c *counts) because() string {
	var words []string
	for _, reason := range c.reasons() {
		words = append(words, fmt.Sprintf("%s %d", reason, c.Fallbacks[reason]))
	}
	return strings.Join(words, ", ")
}

func (r *report) writeText(w io.Writer) {
	if len(r.Processes) == 0 {
		fmt.Fprintln(w, "smcr: no process used the library: with --off or SMCR_MODE=off none does, and set-uid or static programs cannot")
		return
	}
	fmt.Fprintf(w, "smcr: %s over SMC-R (%s sent, %s received), %d over TCP, %s\n", plural(r.Totals.SMC, "connection"),
		size(r.Totals.Tx), size(r.Totals.Rx), r.Totals.TCP, plural(uint64(len(r.Processes)), "process"))
	t := newTable(w, "PID/Command", "SMC-R", "Tx", "Rx", "TCP", "Because")
	t.right("SMC-R", "Tx", "Rx", "TCP")
	any := false
	for i := range r.Processes {
		p := &r.Processes[i]
		if p.SMC == 0 && p.TCP == 0 && len(p.Fallbacks) == 0 && p.Tx == 0 && p.Rx == 0 {
			continue // one of many that a script starts
		}
		name := fmt.Sprintf("%d/%s", p.PID, p.Comm)
		if p.running {
			name += " (still running)"
		}
		t.row(name, p.SMC, size(p.Tx), size(p.Rx), p.TCP, p.because())
		any = true
	}
	if any {
		t.write()
	}
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
