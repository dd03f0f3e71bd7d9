package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/spf13/cobra"
	"go.etcd.io/bbolt"

	"holdfast/internal/load"
)

// newRaftRole returns the command that runs a member of a bare raft cluster. There is no MQTT. Each
// command is one entry, and the state machine ignores it. A GET over HTTP shows whether the member
// leads. A POST makes the leader put load on itself.
func newRaftRole() *cobra.Command {
	var name, dir, listen, peer, peers string
	command := &cobra.Command{Use: "raft", RunE: func(command *cobra.Command, _ []string) error {
		member, err := openRaft(name, dir, peer, strings.Split(peers, ","))
		if err != nil {
			return err
		}
		server := &http.Server{
			Addr: listen, Handler: raftLoad{member},
			ReadHeaderTimeout: 10 * time.Second,
		}
		go func() {
			<-command.Context().Done()
			_ = server.Close() // the process ends
		}()
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return member.Shutdown().Error()
	}}
	flags := command.Flags()
	flags.StringVar(&name, "name", "", "")
	flags.StringVar(&dir, "dir", "", "")
	flags.StringVar(&listen, "listen", "", "")
	flags.StringVar(&peer, "peer", "", "")
	flags.StringVar(&peers, "peers", "", "")
	return command
}

func openRaft(name, dir, peer string, peers []string) (*raft.Raft, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	store, err := raftboltdb.New(raftboltdb.Options{
		// as in Holdfast's boltdb log
		Path:        filepath.Join(dir, "raft.db"),
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStore(dir, 1, io.Discard)
	if err != nil {
		return nil, err
	}
	transport, err := raft.NewTCPTransport(peer, nil, 3, 10*time.Second, io.Discard)
	if err != nil {
		return nil, err
	}
	config := raft.DefaultConfig()
	config.LocalID, config.LogOutput = raft.ServerID(name), io.Discard
	config.MaxAppendEntries, config.BatchApplyCh, config.SnapshotThreshold = 1024, true, 1<<30
	logs, err := raft.NewLogCache(8192, store)
	if err != nil {
		return nil, err
	}
	var servers []raft.Server
	for i, address := range peers {
		servers = append(servers,
			raft.Server{
				ID:      raft.ServerID(fmt.Sprintf("n%d", i+1)),
				Address: raft.ServerAddress(address),
			})
	}
	if err := raft.BootstrapCluster(config, logs, store, snapshots, transport,
		raft.Configuration{Servers: servers}); err != nil {
		return nil, err
	}
	return raft.NewRaft(config, nothing{}, logs, store, snapshots, transport)
}

// nothing is a state machine without a state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any                  { return nil }
func (nothing) ApplyBatch(logs []*raft.Log) []any    { return make([]any, len(logs)) }
func (nothing) Snapshot() (raft.FSMSnapshot, error)  { return nil, errors.New("no snapshots") }
func (nothing) Restore(snapshot io.ReadCloser) error { return snapshot.Close() }

type raftLoad struct{ raft *raft.Raft }

// ServeHTTP answers GET with whether this member leads, and POST of loadOptions with a load.Result.
func (l raftLoad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if l.raft.State() != raft.Leader {
		http.Error(w, "not the leader", http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodGet {
		return
	}
	var options loadOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	command := make([]byte, 20+options.ValueSize)
	result, err := load.Run(r.Context(), options.load(),
		func(context.Context, int) error { return l.raft.Apply(command, 0).Error() })
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(result) // the client may have disconnected
}
