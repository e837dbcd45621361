package hooks

import (
	"os"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"libsmcr/abi/host"
)

// logFile writes to a descriptor of ours, hidden from the program; a failed write is nobody's concern.
type logFile int

func (f logFile) Write(b []byte) (int, error) {
	_, _ = unix.Write(int(f), b)
	return len(b), nil
}

// newLogger is disabled unless SMCR_LOG names a file (%d = process id). SMCR_LOG_LEVEL: error, warn, info (default), debug, trace.
func newLogger() zerolog.Logger {
	path := os.Getenv("SMCR_LOG")
	if path == "" {
		return zerolog.Nop()
	}
	pid := unix.Getpid()
	path = strings.ReplaceAll(path, "%d", strconv.Itoa(pid))
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return zerolog.Nop()
	}
	level, err := zerolog.ParseLevel(os.Getenv("SMCR_LOG_LEVEL"))
	if err != nil || level == zerolog.NoLevel {
		level = zerolog.InfoLevel
	}
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000000Z07:00"
	l := zerolog.New(logFile(hide(fd))).Level(level).With().Timestamp().Int("pid", pid).Logger()
	for _, complaint := range host.CheckEnvironment(os.Environ()) {
		l.Warn().Msg(complaint)
	}
	return l
}
