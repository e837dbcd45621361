package tests

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// noise makes bytes that are the same in every run.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func digest(b []byte) string { return fmt.Sprintf("%d bytes %x\n", len(b), sha256.Sum256(b)) }

// redisCLI is the start of a redis-cli command line.
func redisCLI(port int, args ...string) []string {
	return append([]string{"redis-cli", "-p", strconv.Itoa(port)}, args...)
}

func askRedis(w *harness.World, port int, args ...string) string {
	return w.Run(harness.Command{Args: redisCLI(port, args...)}).OK()
}

// populate fills a redis-server with keys.
func populate(w *harness.World, port, keys, size int) {
	if said := askRedis(w, port, "DEBUG", "POPULATE", strconv.Itoa(keys), "key", strconv.Itoa(size)); said != "OK\n" {
		w.Fail("%s", said)
	}
}

func TestRedisAnswersItsCommandLineClient(t *testing.T) {
	sameAsNative(t, bySMC(500), func(w *harness.World) string {
		_, port := w.Redis()
		var said strings.Builder
		for _, command := range []string{
			"PING", "SET greeting hello", "GET greeting", "APPEND greeting -world", "GET greeting", "GET nothing", "INCR n", "INCRBY n 41",
			"RPUSH list a b c d", "LRANGE list 0 -1", "HSET h f1 v1 f2 v2", "HGETALL h", "ZADD z 1 one 2 two", "ZRANGE z 0 -1 WITHSCORES",
			"INCR greeting", "NOSUCH command", "DBSIZE", "ECHO done",
		} {
			said.WriteString(askRedis(w, port, strings.Fields(command)...))
		}
		script := "MULTI\nSET a 1\nINCR a\nEXEC\nEVAL \"return {1,2,'three'}\" 0\nGET a\n"
		said.WriteString(w.Run(harness.Command{Args: redisCLI(port), Stdin: strings.NewReader(script)}).OK())
		return said.String()
	})
}

func TestRedisKeepsBigValuesIntact(t *testing.T) {
	sameAsNative(t, bySMC(2*(16<<20)), func(w *harness.World) string {
		_, port := w.Redis()
		var said strings.Builder
		for _, size := range []int{1, 4095, 65536, 1 << 20, 16 << 20} {
			value := noise(size)
			said.WriteString(w.Run(harness.Command{Args: redisCLI(port, "-x", "SET", "big"), Stdin: strings.NewReader(string(value))}).OK())
			got := askRedis(w, port, "--raw", "GET", "big")
			if got != string(value)+"\n" {
				w.Fail("a value of %d bytes came back damaged: %s", size, digest([]byte(got)))
			}
			said.WriteString(digest([]byte(got)))
		}
		return said.String()
	})
}

// figures hides what differs from run to run.
var figures = regexp.MustCompile(`[0-9]+\.[0-9]+`)

func TestRedisServesItsBenchmark(t *testing.T) {
	for _, load := range []string{
		"-c 1 -n 1000 -t ping_mbulk,get", "-c 50 -n 5000 -t set,get,lpush,lrange_100", "-c 50 -n 40000 -P 16 -t set,get", "-c 20 -n 2000 -d 50000 -t set,get",
		"-c 50 -n 5000 --threads 2 -t set,get",
	} {
		t.Run(load, func(t *testing.T) {
			sameAsNative(t, bySMC(10000), func(w *harness.World) string {
				_, port := w.Redis()
				args := append([]string{"redis-benchmark", "-p", strconv.Itoa(port), "--csv"}, strings.Fields(load)...)
				r := w.Run(harness.Command{Args: args})
				return figures.ReplaceAllString(r.String(), "N") + askRedis(w, port, "LLEN", "mylist")
			})
		})
	}
}

// One connection for each request. At the end the benchmark closes those that it does not need any more.
func TestRedisServesAConnectionForEachRequest(t *testing.T) {
	scenario := func(env ...string) scenario {
		return func(w *harness.World) string {
			_, port := w.Redis()
			args := []string{"redis-benchmark", "-p", strconv.Itoa(port), "--csv", "-c", "10", "-n", "2000", "-k", "0", "-t", "set"}
			r := w.Run(harness.Command{Args: args, Env: env})
			return figures.ReplaceAllString(r.String(), "N") + askRedis(w, port, "DBSIZE")
		}
	}
	t.Run("over SMC-R", func(t *testing.T) {
		sameAsNative(t, either("left-early", "client-not-offering"), scenario())
	})
	t.Run("adapted", func(t *testing.T) {
		sameAsNative(t, func(t *testing.T, sum harness.Counts) {
			if n := sum.Fallbacks["short-connections"]; n < 1000 || sum.SMC < 16 {
				t.Errorf("%d connections were left to TCP for being short, %d went over SMC-R", n, sum.SMC)
			}
			either("short-connections", "left-early", "client-not-offering")(t, sum)
		}, scenario("SMCR_ADAPT=1"))
	})
}

func TestRedisSavesInTheBackgroundWhileItServes(t *testing.T) {
	sameAsNative(t, bySMC(1<<20), func(w *harness.World) string {
		_, port := w.Redis("--rdbcompression", "no")
		populate(w, port, 200000, 100)
		stdin, feed := io.Pipe()
		session := w.Start(harness.Command{Args: redisCLI(port), Stdin: stdin}) // lives before, during and after
		fmt.Fprintln(feed, "SET before 1")
		session.Saw("OK")
		load := w.Start(harness.Command{Args: []string{"redis-benchmark", "-p", strconv.Itoa(port), "-c", "20", "-n", "60000", "-t", "set,get", "-q"}})
		load.Saw("rps") // it runs
		askRedis(w, port, "BGSAVE")
		fmt.Fprintln(feed, "INCR before")
		session.Saw("2")
		w.Until("the save has ended", func() bool {
			return strings.Contains(askRedis(w, port, "INFO", "persistence"), "rdb_bgsave_in_progress:0")
		})
		saved := strings.Contains(askRedis(w, port, "INFO", "persistence"), "rdb_last_bgsave_status:ok")
		fmt.Fprintln(feed, "INCR before")
		session.Saw("3")
		feed.Close()
		r := load.Wait()
		return fmt.Sprintf("%s saved %v, load %d %q", session.Wait(), saved, r.Code, r.Err)
	})
}

func TestRedisPublishesAndMonitors(t *testing.T) {
	sameAsNative(t, bySMC(500), func(w *harness.World) string {
		_, port := w.Redis()
		subscriber := w.Start(harness.Command{Args: redisCLI(port, "SUBSCRIBE", "news")})
		w.Until("somebody has subscribed", func() bool { return askRedis(w, port, "PUBSUB", "NUMSUB", "news") == "news\n1\n" })
		monitor := w.Start(harness.Command{Args: redisCLI(port, "MONITOR")})
		monitor.Saw("OK")
		for i := range 20 {
			if n := askRedis(w, port, "PUBLISH", "news", fmt.Sprintf("message-%d", i)); n != "1\n" {
				w.Fail("published to %s", n)
			}
		}
		subscriber.Saw("message-19")
		monitor.Saw("message-19")
		addresses := regexp.MustCompile(`[0-9.]+ \[0 127.0.0.1:[0-9]+\]`)
		return subscriber.Out.String() + addresses.ReplaceAllString(monitor.Out.String(), "T")
	})
}

func TestRedisReplicates(t *testing.T) {
	sameAsNative(t, bySMC(4<<20), func(w *harness.World) string {
		_, master := w.Redis("--rdbcompression", "no", "--repl-diskless-sync-delay", "0")
		populate(w, master, 40000, 100)
		_, replica := w.Redis("--dbfilename", "replica.rdb", "--replicaof", "127.0.0.1 "+strconv.Itoa(master))
		w.Until("the replica has caught up", func() bool {
			return strings.Contains(askRedis(w, replica, "INFO", "replication"), "master_link_status:up")
		})
		askRedis(w, master, "SET", "late", "arrival")
		w.Until("the replica has the late key", func() bool { return askRedis(w, replica, "GET", "late") == "arrival\n" })
		same := askRedis(w, master, "DEBUG", "DIGEST") == askRedis(w, replica, "DEBUG", "DIGEST")
		return askRedis(w, replica, "DBSIZE") + fmt.Sprint("same content ", same)
	})
}
