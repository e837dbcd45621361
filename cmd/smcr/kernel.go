package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"libsmcr/kernel"
)

func newEnable() *cobra.Command {
	var cgroup string
	c := &cobra.Command{
		Use:   "enable",
		Short: "Let connections say in their TCP handshake that they can do SMC-R",
		Long: "Attaches the kernel hook: the TCP option of RFC 7609 on the handshakes of programs that run under the library, which other\n" +
			"users, containers and hosts then see. Needs root, once after each start of the machine. Run again it brings the hook up to date\n" +
			"without disturbing anybody. Other programs' handshakes stay as they are.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			at, did, err := kernel.Enable(cgroup)
			if err != nil {
				return err
			}
			said := map[kernel.Change]string{
				kernel.Unchanged: "the kernel hook is on %s already\n", kernel.Attached: "the kernel hook is on %s\n", kernel.Updated: "the kernel hook on %s is up to date now\n",
			}
			fmt.Fprintf(c.OutOrStdout(), said[did], at)
			return nil
		},
	}
	c.Flags().StringVar(&cgroup, "cgroup", "", "only for programs in this cgroup (v2) and below; the default is all")
	return c
}

func newDisable() *cobra.Command {
	return &cobra.Command{
		Use:   "disable",
		Short: "Take the kernel hook away",
		Long:  "Detaches the kernel hook and removes all of it. Connections that are established do not notice; new ones are plain TCP in their handshake.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			was, err := kernel.Disable()
			if err != nil {
				return err
			}
			said := "there is no kernel hook"
			if was {
				said = "the kernel hook is gone"
			}
			fmt.Fprintln(c.OutOrStdout(), said)
			return nil
		},
	}
}

func newStatus() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show whether the kernel hook is there",
		Long: "Shows whether the kernel hook serves programs that are started here, which everybody may ask, and where it is attached, which\n" +
			"needs root. The exit code is 0 if it serves them.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s := kernel.Look()
			if asJSON {
				if err := writeJSON(c.OutOrStdout(), s); err != nil {
					return err
				}
			} else {
				writeStatus(c, s)
			}
			if !s.Serves {
				return failure(exitFailed, "")
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func writeStatus(c *cobra.Command, s kernel.Status) {
	w := c.OutOrStdout()
	line := "the kernel hook does not serve programs that are started here"
	if s.Serves {
		line = "the kernel hook serves programs that are started here"
	}
	if s.Cgroup != "" {
		line += "; it is on " + s.Cgroup
	}
	fmt.Fprintln(w, line)
	if s.Problem != "" {
		fmt.Fprintln(w, s.Problem)
	}
	if len(s.Programs) > 0 {
		t := newTable(w, "Program", "ID", "Tag")
		t.right("ID")
		for _, p := range s.Programs {
			t.row(p.Name, p.ID, p.Tag)
		}
		t.write()
	}
}
