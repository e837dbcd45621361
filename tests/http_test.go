package tests

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

var pages = []struct {
	name string
	size int
}{{"empty", 0}, {"one", 1}, {"page", 70000}, {"large", 8 << 20}}

// site writes the files that a web server serves.
func site(w *harness.World) string {
	for _, p := range pages {
		w.Write(p.name, noise(p.size))
	}
	return w.Dir
}

// fetch asks for everything in several ways and describes the answers.
func fetch(w *harness.World, port int) string {
	var said strings.Builder
	url := "http://127.0.0.1:" + strconv.Itoa(port) + "/"
	curl := func(args ...string) {
		r := w.Run(harness.Command{Args: append([]string{"curl", "-sS", "-w", "\n%{http_code} %{size_download}"}, args...)})
		fmt.Fprintf(&said, "%s exit %d %q", digest([]byte(r.Out)), r.Code, r.Err)
	}
	for _, p := range pages {
		curl(url + p.name)
	}
	curl("-I", "-o", "/dev/null", url+"page")
	curl(url + "absent")
	curl("--http1.0", url+"page")
	curl("--limit-rate", "2M", url+"large")
	curl(url+"one", url+"page", url+"one", url+"large") // one after the other, on one connection where the server keeps it
	r := w.Run(harness.Command{Args: []string{"curl", "-sS", "--parallel", "--parallel-immediate", "-o", w.Path("got-#1"), url + "{empty,one,page,large}"}})
	fmt.Fprintf(&said, "parallel: exit %d\n", r.Code) // it prints its progress whatever one says
	for _, p := range pages {
		if p.size > 0 {
			said.WriteString(digest(w.Read(w.Path("got-" + p.name))))
		}
	}
	return said.String()
}

func TestCurlFetchesFromPython(t *testing.T) {
	sameAsNative(t, bySMC(30<<20), func(w *harness.World) string {
		dir := site(w)
		port := harness.FreePort()
		server := w.Server(port, harness.Command{Args: []string{"/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", dir, strconv.Itoa(port)}})
		said := fetch(w, port)
		requests := regexp.MustCompile(`"[A-Z]+ [^"]*" \d+`).FindAllString(server.Err.String(), -1)
		return said + fmt.Sprint(len(requests)) + strings.Join(requests[:12], "\n")
	})
}

func TestCurlFetchesFromNginxWorkers(t *testing.T) {
	for _, how := range []string{"sendfile on; tcp_nopush on;", "sendfile off;"} {
		t.Run(how, func(t *testing.T) {
			sameAsNative(t, bySMC(30<<20), func(w *harness.World) string {
				dir := site(w)
				port := harness.FreePort()
				w.Server(port, w.Nginx("root", 2, fmt.Sprintf(`%s client_max_body_size 0;
  server { listen 127.0.0.1:%d; root %s; location /up/ { dav_methods PUT; create_full_put_path on; } }`, how, port, dir)))
				said := fetch(w, port)
				upload := []string{"curl", "-sS", "-H", "Expect:", "-T", w.Path("large"), "-w", "%{http_code}", "-o", "/dev/null", fmt.Sprintf("http://127.0.0.1:%d/up/", port)}
				said += w.Run(harness.Command{Args: upload}).String() + digest(w.Read(w.Path("up/large")))
				levels := regexp.MustCompile(`\[[a-z]+\]`).FindAllString(string(w.Read(w.Path("error.log"))), -1)
				return said + fmt.Sprint("logged ", levels)
			})
		})
	}
}

// The master listens as root, its workers have no way into root's run directory nor make one beside it, and say so.
func TestNginxWorkersOfAnotherUserArePlainTCP(t *testing.T) {
	sameAsNative(t, plain("not-claimed", "no-registry"), func(w *harness.World) string {
		port := harness.FreePort()
		w.Server(port, w.Nginx("nobody nogroup", 1, fmt.Sprintf("server { listen 127.0.0.1:%d; return 200 answer; }", port)))
		return w.Run(harness.Command{Args: []string{"curl", "-sS", fmt.Sprintf("http://127.0.0.1:%d/", port)}}).String() + string(w.Read(w.Path("error.log")))
	})
}

// nginx registers the sockets to its upstreams in its epoll set before it connects them.
func TestCurlFetchesThroughAnNginxProxy(t *testing.T) {
	sameAsNative(t, bySMC(60<<20), func(w *harness.World) string {
		dir := site(w)
		front, back := harness.FreePort(), harness.FreePort()
		w.Server(front, w.Nginx("root", 2, fmt.Sprintf(`upstream back { server 127.0.0.1:%[2]d; keepalive 4; }
  server { listen 127.0.0.1:%[1]d; location / { proxy_pass http://back; proxy_http_version 1.1; proxy_set_header Connection ""; } }
  server { listen 127.0.0.1:%[2]d; root %[3]s; }`, front, back, dir)))
		said := fetch(w, front)
		levels := regexp.MustCompile(`\[[a-z]+\]`).FindAllString(string(w.Read(w.Path("error.log"))), -1)
		return said + fmt.Sprint("logged ", levels)
	})
}

func TestSocatCarriesBothWays(t *testing.T) {
	sameAsNative(t, bySMC(8<<20), func(w *harness.World) string {
		port := harness.FreePort()
		w.Server(port, harness.Command{Args: []string{"socat", fmt.Sprintf("TCP-LISTEN:%d,bind=127.0.0.1,fork,reuseaddr", port), "EXEC:cat"}})
		data := w.Write("data", noise(4<<20))
		var said strings.Builder
		for range 3 {
			r := w.Run(harness.Command{Args: []string{"socat", "-t", "20", "-", fmt.Sprintf("TCP:127.0.0.1:%d", port)}, Stdin: strings.NewReader(string(w.Read(data)))})
			fmt.Fprintf(&said, "%sexit %d %q\n", digest([]byte(r.Out)), r.Code, r.Err)
		}
		return said.String()
	})
}

// One way at a time: a listening nc leaves as soon as its peer has ended, whatever it still has to send.
func TestNetcatCarriesAFileEachWay(t *testing.T) {
	sameAsNative(t, bySMC(2*(4<<20)-1), func(w *harness.World) string {
		there, back := noise(4<<20), noise(4 << 20)[1:]
		said := ""
		for _, way := range []struct{ server, client []byte }{{nil, there}, {back, nil}} {
			nc := func(data []byte, args ...string) harness.Command {
				c := harness.Command{Args: append([]string{"nc", "-N"}, args...), Stdin: strings.NewReader(string(data))}
				if data == nil {
					c.Args = append([]string{"nc", "-d"}, args...)
				}
				return c
			}
			port := harness.FreePort()
			server := w.Server(port, nc(way.server, "-l", "127.0.0.1", strconv.Itoa(port)))
			client := w.Run(nc(way.client, "127.0.0.1", strconv.Itoa(port)))
			r := server.Wait()
			said += fmt.Sprintf("%s%s exit %d %d %q %q\n", digest([]byte(client.Out)), digest([]byte(r.Out)), client.Code, r.Code, client.Err, r.Err)
		}
		return said
	})
}
