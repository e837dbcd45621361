package hooks

// #include "shim.h"
import "C"

import (
	"errors"
	"os"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"libsmcr/rules"
)

// loadRules compiles the rules for this process and those to come, when the engine is the first to meet them (rules.c). A file that
// cannot be used keeps everything on TCP; the log says why.
func loadRules(sh *C.struct_shim, log zerolog.Logger) {
	if sh.rules != nil {
		return
	}
	var id, after [6]C.u64
	for range 3 { // until the text is that of one identity
		if C.rules_source(&id[0]) == 0 {
			return
		}
		name, text, err := rulesText()
		if C.rules_source(&after[0]) != 0 && id != after {
			continue
		}
		var set rules.Set
		lasting := C.int(0) // what kept us from reading may not keep others
		if err == nil {
			lasting = 1
			set, err = rules.Parse(text)
		}
		table := rules.Bad()
		if err == nil {
			table = set.Compile()
			log.Info().Str("rules", name).Int("count", len(set)).Msg("rules are in force")
		} else {
			log.Warn().Msg(rules.Complaint(name, err))
		}
		C.rules_keep(unsafe.Pointer(&table[0]), C.u64(len(table)), &id[0], lasting)
		return
	}
}

func rulesText() (name string, text []byte, err error) {
	inline, path := rules.Source(os.Getenv)
	if path == "" {
		return rules.Inline, []byte(inline), nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return path, nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return path, nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return path, nil, errors.New("not a regular file")
	}
	text = make([]byte, rules.MaxText+1)
	n := 0
	for n < len(text) {
		k, err := unix.Read(fd, text[n:])
		if err != nil {
			return path, nil, err
		}
		if k == 0 {
			break
		}
		n += k
	}
	return path, text[:n], nil
}
