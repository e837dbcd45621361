package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"libsmcr/abi/host"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version string

type versionInfo struct {
	Version string `json:"version"`
	ABI     int    `json:"abi"` // of the structures in shared memory: processes with different ones do not talk SMC-R
	Go      string `json:"go"`
}

func (v versionInfo) String() string {
	return fmt.Sprintf("smcr %s, ABI %d, %s", v.Version, v.ABI, v.Go)
}

func thisVersion() versionInfo {
	v := versionInfo{Version: version, ABI: host.ABI, Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok && v.Version == "" {
		v.Version = info.Main.Version
	}
	if v.Version == "" || v.Version == "(devel)" {
		v.Version = "devel"
	}
	return v
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := thisVersion()
			if asJSON {
				return writeJSON(c.OutOrStdout(), v)
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), v)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
