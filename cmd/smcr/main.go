// Command smcr starts programs under libsmcr and shows what their connections do.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes. A program that runs under us keeps its own; 125 to 127 are those of env(1) and timeout(1).
const (
	exitFailed   = 1
	exitUsage    = 2
	exitNotRun   = 125 // smcr itself failed before it started the program
	exitNoExec   = 126
	exitNotFound = 127
)

// exitError ends smcr with a code and one line, or with the code alone.
type exitError struct {
	code int
	line string
}

func (e *exitError) Error() string { return e.line }

func failure(code int, format string, args ...any) error {
	return &exitError{code, fmt.Sprintf(format, args...)}
}

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return 0
	}
	code := exitFailed
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if line := err.Error(); line != "" {
		fmt.Fprintf(stderr, "smcr: %s\n", line)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "smcr",
		Short: "Run TCP programs over SMC-R and look at their connections",
		Long: "smcr starts unmodified TCP programs under libsmcr, so that their connections use SMC-R (RFC 7609)\n" +
			"where the other end can, and shows what they do.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			return unknownCommand(c, args[0])
		},
	}
	root.Version = thisVersion().String() // --version
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return failure(exitUsage, "%v: see %s --help", err, c.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newRules(), newRun(), newSS(), newEnable(), newDisable(), newStatus(), newVersion())
	root.SetHelpCommand(&cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 || about == root && len(args) > 0 {
				return unknownCommand(root, strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	})
	return root
}

func unknownCommand(root *cobra.Command, name string) error {
	root.SuggestionsMinimumDistance = 2
	if near := root.SuggestionsFor(name); len(near) > 0 && !strings.Contains(name, " ") {
		return failure(exitUsage, "unknown command %q: did you mean %q?", name, near[0])
	}
	return failure(exitUsage, "unknown command %q: see smcr help", name)
}

// noArgs refuses arguments in one line.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return failure(exitUsage, "%s: unexpected %q: see %s --help", c.Name(), args[0], c.CommandPath())
	}
	return nil
}
