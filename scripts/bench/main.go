// Command bench runs the programs that people know natively and under the library, in turn, and compares the figures.
//
//	bench [-row NAME] [-n RUNS]   medians, with the targets met or missed
//	bench -demo                   one run of each, with the connections that went over SMC-R
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"libsmcr/tests/harness"
)

func main() {
	demo := flag.Bool("demo", false, "one run of each program; exit code 1 if a connection fell back")
	only := flag.String("row", "", "only the rows whose name contains this")
	runs := flag.Int("n", 5, "runs of each, natively and under SMC-R in turn")
	flag.Parse()
	if err := harness.Compile(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *demo {
		*runs = 1
	}
	chosen := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !strings.Contains(r.name, *only) || *demo && !r.demo })
	if len(chosen) == 0 {
		fmt.Fprintf(os.Stderr, "no row is called %q\n", *only)
		os.Exit(2)
	}
	var results []result
	for _, r := range chosen {
		fmt.Fprintf(os.Stderr, "%s …\n", r.name)
		results = append(results, r.compare(*runs))
	}
	if *demo {
		os.Exit(showDemo(results))
	}
	os.Exit(showBench(results))
}

// result is what one row gave in both worlds.
type result struct {
	row
	native, smc float64
	counts      harness.Counts // of the last run under the library
	err         error
}

// compare measures natively and under the library in turn and keeps the medians.
func (r row) compare(runs int) result {
	figures := map[harness.Mode][]float64{}
	res := result{row: r}
	for range runs {
		for _, mode := range []harness.Mode{harness.Native, harness.SMC} {
			figure, counts, err := r.once(mode)
			if err != nil {
				res.err = err
				return res
			}
			figures[mode] = append(figures[mode], figure)
			if mode == harness.SMC {
				res.counts = counts
			}
		}
	}
	res.native, res.smc = median(figures[harness.Native]), median(figures[harness.SMC])
	return res
}

func (r row) once(mode harness.Mode) (figure float64, counts harness.Counts, err error) {
	type failure string
	defer func() {
		if f, ok := recover().(failure); ok {
			err = fmt.Errorf("%s: %s", mode, string(f))
		}
	}()
	w := harness.New(mode, func(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) })
	defer w.Destroy()
	figure = r.measure(w)
	if err := w.End(); err != nil {
		return 0, counts, err
	}
	return figure, w.Totals(), nil
}

func median(v []float64) float64 {
	slices.SortFunc(v, cmp.Compare[float64])
	return v[len(v)/2]
}

func showDemo(results []result) (code int) {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tTCP\tSMC-R\tratio\tconnections over SMC-R")
	for _, r := range results {
		if r.err != nil {
			fmt.Fprintf(t, "%s\tfailed: %v\n", r.title, r.err)
			code = 1
			continue
		}
		note := ""
		if r.counts.TCP != 0 || r.counts.SMC == 0 {
			note, code = fmt.Sprintf("  FELL BACK: %v", r.counts.Fallbacks), 1
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%d of %d%s\n", r.title, r.show(r.native), r.show(r.smc), r.ratio(r.native, r.smc), r.counts.SMC, r.counts.SMC+r.counts.TCP, note)
	}
	t.Flush()
	return code
}

func showBench(results []result) (code int) {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\twhat\tTCP\tSMC-R\tratio\ttarget\t")
	for _, r := range results {
		if r.err != nil {
			fmt.Fprintf(t, "%s\t%s\tfailed: %v\n", r.name, r.title, r.err)
			code = 1
			continue
		}
		verdict := ""
		if r.target != nil {
			verdict = "met"
			if !r.target.met(r.native, r.smc, r.ratio(r.native, r.smc)) {
				verdict, code = "MISSED", 1
			}
		}
		ratio := "-" // figures that are a difference themselves
		if r.unit != "ns" {
			ratio = fmt.Sprintf("%.2f", r.ratio(r.native, r.smc))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.name, r.title, r.show(r.native), r.show(r.smc), ratio, r.target, verdict)
	}
	t.Flush()
	return code
}
