// Command postlink takes the Go runtime's share out of what the dynamic loader relocates when a program starts.
//
//	postlink libsmcr.so link.map
//
// LD_PRELOAD reaches every program, and most never need the engine; but the loader would write some thousand pointers into
// Go's data, a page fault and a private page for each 4 KiB of it. So the relocations that lie in the Go object's data are moved
// to the end of the table, behind what DT_RELASZ says, and start.c applies them before it starts the runtime. The linker's map
// (-Wl,-Map) tells which data that is. A library that was not treated works as well; it only loads more slowly.
package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// magic marks struct start_deferred of start.c, which is told where the rest of the table is.
const magic = "smcr:deferred\x00\x00\x01"

const relaSize = 24 // Elf64_Rela: offset, info, addend

type span struct{ from, to uint64 }

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: postlink libsmcr.so link.map")
		os.Exit(2)
	}
	n, err := treat(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "postlink:", err)
		os.Exit(1)
	}
	fmt.Fprintf(os.Stderr, "postlink: %d relocations deferred\n", n)
}

// goData are the parts of the output that come from the Go object's data, from the linker's map.
func goData(linkMap string) []span {
	var out []span
	line := regexp.MustCompile(`(?m)^ (\.\S+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+\S*/go\.o$`)
	for _, m := range line.FindAllStringSubmatch(linkMap, -1) {
		if strings.HasPrefix(m[1], ".t") {
			continue // .text, .tbss
		}
		at, err1 := strconv.ParseUint(m[2], 16, 64)
		size, err2 := strconv.ParseUint(m[3], 16, 64)
		if err1 == nil && err2 == nil && at != 0 && size != 0 {
			out = append(out, span{at, at + size})
		}
	}
	return out
}

func treat(lib, mapFile string) (int, error) {
	image, err := os.ReadFile(lib)
	if err != nil {
		return 0, err
	}
	linkMap, err := os.ReadFile(mapFile)
	if err != nil {
		return 0, err
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, err
	}
	mark := bytes.Index(image, []byte(magic))
	if mark < 0 || bytes.Count(image, []byte(magic)) != 1 {
		return 0, errors.New("the library has no place to say where the deferred relocations are")
	}
	place := image[mark+len(magic):]
	if n := binary.LittleEndian.Uint64(place[8:]); n != 0 {
		return int(n), nil // go build found its output up to date
	}
	spans := goData(string(linkMap))
	rela, dyn := f.Section(".rela.dyn"), f.Section(".dynamic")
	if len(spans) == 0 || rela == nil || dyn == nil {
		return 0, errors.New("no Go object in the map, or no table of relocations")
	}

	// The table keeps its order: relative ones first (DT_RELACOUNT), then the others; the deferred ones go behind both.
	table := image[rela.Offset : rela.Offset+rela.Size]
	var relative, other, deferred []byte
	for i := 0; i < len(table); i += relaSize {
		r := table[i : i+relaSize]
		at, info := binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:])
		switch {
		case elf.R_X86_64(info) != elf.R_X86_64_RELATIVE:
			other = append(other, r...)
		case inside(spans, at):
			deferred = append(deferred, r...)
		default:
			relative = append(relative, r...)
		}
	}
	if len(deferred) == 0 {
		return 0, errors.New("nothing to defer")
	}
	// The loader reads the PLT's relocations too: they follow at once what it reads here.
	plt := f.Section(".rela.plt")
	if plt == nil || plt.Addr != rela.Addr+rela.Size {
		return 0, errors.New(".rela.plt does not follow .rela.dyn")
	}
	kept := len(relative) + len(other)
	jumps := slices.Clone(image[plt.Offset : plt.Offset+plt.Size])
	copy(image[rela.Offset:plt.Offset+plt.Size], slices.Concat(relative, other, jumps, deferred))

	for i := dyn.Offset; i < dyn.Offset+dyn.Size; i += 16 {
		val := image[i+8 : i+16]
		switch elf.DynTag(binary.LittleEndian.Uint64(image[i:])) {
		case elf.DT_RELA:
			if binary.LittleEndian.Uint64(val) != rela.Addr {
				return 0, errors.New("DT_RELA is not .rela.dyn")
			}
		case elf.DT_RELASZ:
			if binary.LittleEndian.Uint64(val) != rela.Size {
				return 0, errors.New("DT_RELASZ is not the size of .rela.dyn")
			}
			binary.LittleEndian.PutUint64(val, uint64(kept))
		case elf.DT_JMPREL:
			binary.LittleEndian.PutUint64(val, rela.Addr+uint64(kept))
		case elf.DT_RELACOUNT:
			binary.LittleEndian.PutUint64(val, uint64(len(relative)/relaSize))
		}
	}
	binary.LittleEndian.PutUint64(place, rela.Addr+uint64(kept+len(jumps)))
	binary.LittleEndian.PutUint64(place[8:], uint64(len(deferred)/relaSize))

	// Replaced, not written into: a running program may have the old file mapped.
	tmp := lib + ".tmp"
	if err := os.WriteFile(tmp, image, 0o755); err != nil {
		return 0, err
	}
	return len(deferred) / relaSize, os.Rename(tmp, lib)
}

func inside(spans []span, at uint64) bool {
	for _, s := range spans {
		if at >= s.from && at < s.to {
			return true
		}
	}
	return false
}
