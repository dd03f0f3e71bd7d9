// Command load runs the clients of the harness, and writes their history. The harness directs it
// over HTTP.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/test/chaos/record"
	"holdfast/test/workload"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// server is the HTTP API by which the harness directs the load.
type server struct {
	broker      string
	folder      string
	load        *workload.Load
	prober      *link
	disconnects atomic.Int64
	finished    chan struct{}
	ending      sync.Mutex // held while the history is finished or written
}

func run() error {
	var (
		seed   = flag.Uint64("seed", 1, "of what the clients do")
		broker = flag.String("broker", "", "host:port")
		folder = flag.String("folder", "/history", "where to write the history")
		listen = flag.String("listen", ":8080", "for what to do next")
		pace   = flag.Duration("pace", 100*time.Millisecond,
			"between the operations of one client")
		lockTTL = flag.Duration("lock-ttl", 2*time.Second, "of locks")
	)
	flag.Parse()
	s := &server{broker: *broker, folder: *folder, finished: make(chan struct{})}
	s.load = workload.New(workload.Settings{
		Seed: *seed, Expiry: 10, DefaultExpiry: time.Minute, CopyWindow: 30 * time.Second,
		Pace: *pace, LockTTL: *lockTTL,
		Generation: 5 * time.Second,
	})
	s.prober = s.hire("prober-0", true)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /state", s.state)
	mux.HandleFunc("POST /start", s.start)
	mux.HandleFunc("POST /probe", s.probe)
	mux.HandleFunc("POST /bad", s.bad)
	mux.HandleFunc("POST /over", s.over)
	mux.HandleFunc("POST /save", s.save)
	mux.HandleFunc("POST /finish", s.finish)
	web := &http.Server{Addr: *listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-s.finished:
		return web.Shutdown(context.Background())
	}
}

func (s *server) hire(id string, persistent bool) *link {
	return newLink(s.load, s.broker, id, persistent, &s.disconnects)
}

func (s *server) state(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, record.Load{
		Now: record.Duration(s.load.Now()), Answered: s.load.Answered.Load(),
		Disconnects: s.disconnects.Load(),
	})
}

func (s *server) answer(w http.ResponseWriter, value any) {
	_ = json.NewEncoder(w).Encode(value) // the caller may have left
}

// start lets the clients work.
func (s *server) start(w http.ResponseWriter, r *http.Request) {
	s.load.Staff(func(id string,
		persistent bool,
	) *workload.Client {
		return s.hire(id, persistent).Client
	}, true)
	s.state(w, r)
}

// probe answers how long it took until a write and a read have worked, or with status 503 if they
// have not within a minute.
func (s *server) probe(w http.ResponseWriter, _ *http.Request) {
	const patience = time.Minute
	took, worked := s.prober.Probe(patience)
	if !worked {
		http.Error(w, "a write and a read did not work", http.StatusServiceUnavailable)
		return
	}
	s.answer(w, record.Duration(took))
}

// bad runs a misbehaving client for a time.
func (s *server) bad(w http.ResponseWriter, r *http.Request) {
	lasts, err := time.ParseDuration(r.FormValue("lasts"))
	if err == nil {
		ctx, cancel := context.WithTimeout(r.Context(), lasts)
		defer cancel()
		err = bad(ctx, r.FormValue("kind"), s.broker)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// over stops the clients, and answers when they have stopped.
func (s *server) over(w http.ResponseWriter, r *http.Request) {
	s.load.StopClients()
	s.state(w, r)
}

// longestLife is longer than the time to live of any key that the clients set.
const longestLife = 10 * time.Second

// finish waits until keys have expired, reads all keys once more, checks the mirrors, writes the
// history, and ends the process.
func (s *server) finish(w http.ResponseWriter, _ *http.Request) {
	s.ending.Lock()
	defer s.ending.Unlock()
	s.load.Sleep(longestLife)
	for _, o := range s.prober.ReadAll() {
		s.load.History.AddOdd("a read at the end was not answered: %s", o)
	}
	s.checkMirrors()
	s.load.Sleep(3 * time.Second) // for what is still on its way to the clients
	s.load.End()
	s.load.Wait()
	s.write(w)
	close(s.finished)
}

// save writes the history when the clients have not ended as they should. If a finish is under way,
// save first waits for its end, for at most half a minute. Clients may still add to the history
// afterwards.
func (s *server) save(w http.ResponseWriter, _ *http.Request) {
	for given := time.Now().Add(30 * time.Second); time.Now().Before(given); time.Sleep(
		100 * time.Millisecond) {
		if s.ending.TryLock() {
			defer s.ending.Unlock()
			break
		}
	}
	s.write(w)
}

// write writes the history.
func (s *server) write(w http.ResponseWriter) {
	h := s.load.History
	if err := errors.Join(s.writeFile("history.jsonl", h.Save),
		s.writeFile("knossos.edn", h.WriteKnossos), s.writeFile("elle.edn", h.WriteElle),
		s.writeFile("elle-transactions.edn", h.WriteElleTransactions)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (s *server) writeFile(name string, content func(io.Writer) error) error {
	file, err := os.Create(filepath.Join(s.folder, name))
	if err != nil {
		return err
	}
	return errors.Join(content(file), file.Close())
}
