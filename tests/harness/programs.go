package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Redis starts a redis-server that keeps its files in the world.
func (w *World) Redis(options ...string) (*Process, int) {
	port := FreePort()
	args := []string{"redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes", "--dir", w.Dir}
	return w.Server(port, Command{Args: append(args, options...)}), port
}

// Iperf starts an iperf3 server.
func (w *World) Iperf(options ...string) (*Process, int) {
	port := FreePort()
	args := append([]string{"iperf3", "-s", "-B", "127.0.0.1", "-p", strconv.Itoa(port)}, options...)
	return w.Server(port, Command{Args: args}), port
}

// Memcached starts a memcached.
func (w *World) Memcached() (*Process, int) {
	port := FreePort()
	return w.Server(port, Command{Args: []string{"memcached", "-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "2", "-p", strconv.Itoa(port)}}), port
}

// Sockperf starts a sockperf server for TCP.
func (w *World) Sockperf() (*Process, int) {
	port := FreePort()
	return w.Server(port, Command{Args: []string{"sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", strconv.Itoa(port)}}), port
}

// Nginx is an nginx in the world's directory, where it writes error.log and nginx.pid; http: what it serves, in its own words.
func (w *World) Nginx(user string, workers int, http string) Command {
	conf := w.Write("nginx.conf", fmt.Appendf(nil, `daemon off; user %[2]s; worker_processes %[3]d; pid %[1]s/nginx.pid; error_log %[1]s/error.log;
events { worker_connections 100; }
http { access_log off;
  client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  %[4]s }
`, w.Dir, user, workers, http))
	return Command{Args: []string{"/usr/sbin/nginx", "-p", w.Dir, "-e", w.Path("error.log"), "-c", conf}}
}

// Echo starts the echo server of tests/apps and reads its port.
func (w *World) Echo(c Command, options ...string) (*Process, int) {
	c.Args = append([]string{w.app("echo", c.UID), "serve"}, options...)
	p := w.Start(c)
	p.Saw("port ")
	p.Saw("\n")
	port, err := strconv.Atoi(strings.Fields(p.Out.String())[1])
	w.must(err)
	return p, port
}

// Ask runs the echo client.
func (w *World) Ask(c Command, port, connections, bytes int, options ...string) Result {
	c.Args = append([]string{w.app("echo", c.UID), "ask", strconv.Itoa(port), strconv.Itoa(connections), strconv.Itoa(bytes)}, options...)
	return w.Run(c)
}

// Hold starts a client that keeps connections open and idle until its world ends. The server's answer must be as long as the text.
func (w *World) Hold(port, connections int, text string) *Process {
	p := w.Start(Command{Args: []string{App("echo"), "hold", strconv.Itoa(port), strconv.Itoa(connections), text}})
	p.Saw("holding")
	return p
}

// App is a program of tests/apps, compiled by Compile.
func App(name string) string { return filepath.Join(Root(), "build", "tests", name) }

func (w *World) app(name string, uid int) string {
	if uid == 0 {
		return App(name)
	}
	return w.copy(App(name))
}

// Compile builds the programs of tests/apps that are older than their sources.
func Compile() error {
	apps := filepath.Join(Root(), "tests", "apps")
	sources, _ := filepath.Glob(filepath.Join(apps, "*.c"))
	headers, _ := filepath.Glob(filepath.Join(apps, "*.h"))
	if err := os.MkdirAll(App(""), 0o755); err != nil {
		return err
	}
	for _, source := range sources {
		app := App(strings.TrimSuffix(filepath.Base(source), ".c"))
		if newer(app, append(headers, source)) {
			continue
		}
		out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", app, source, "-lm").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", source, err, out)
		}
	}
	return nil
}

func newer(file string, than []string) bool {
	st, err := os.Stat(file)
	if err != nil {
		return false
	}
	for _, other := range than {
		if o, err := os.Stat(other); err != nil || o.ModTime().After(st.ModTime()) {
			return false
		}
	}
	return true
}
