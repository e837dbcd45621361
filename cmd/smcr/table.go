package main

import (
	"fmt"
	"io"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/sys/unix"
)

// textTable prints rows under headings, without lines around them, as ss and smcss do.
type textTable struct {
	w       io.Writer
	t       table.Writer
	configs []table.ColumnConfig
	colours bool
}

func newTable(w io.Writer, headings ...any) *textTable {
	t := &textTable{w: w, t: table.NewWriter(), colours: isTerminal(w)}
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	if t.colours {
		text.EnableColors()
		style.Color.Header = text.Colors{text.Bold}
	}
	t.t.SetStyle(style)
	t.t.SuppressTrailingSpaces()
	t.t.AppendHeader(headings)
	return t
}

// right aligns columns of numbers.
func (t *textTable) right(headings ...string) {
	for _, h := range headings {
		t.configs = append(t.configs, table.ColumnConfig{Name: h, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
}

func (t *textTable) row(cells ...any) { t.t.AppendRow(cells) }

// paint colours a cell on a terminal.
func (t *textTable) paint(c text.Color, s string) string {
	if !t.colours {
		return s
	}
	return c.Sprint(s)
}

func (t *textTable) write() {
	t.t.SetColumnConfigs(t.configs)
	fmt.Fprintln(t.w, t.t.Render())
}

// isTerminal reports whether colours are wanted there.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func size(n uint64) string { return humanize.IBytes(n) }

func plural(n uint64, noun string) string {
	s := "s"
	if noun == "process" {
		s = "es"
	}
	if n == 1 {
		s = ""
	}
	return fmt.Sprintf("%d %s%s", n, noun, s)
}
