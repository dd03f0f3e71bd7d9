package trial

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Without an admin API or a health port there is no address to show.
func TestAddressIsEmptyWithoutAListener(t *testing.T) {
	c := &Cluster{}
	if c.Admin() != "" || c.Health() != "" {
		t.Errorf("admin %q, health %q", c.Admin(), c.Health())
	}
}

// A folder in which only some nodes have logs is refused: the other nodes would get new ids, which
// those logs do not name.
func TestFolderMustHaveTheLogsOfAllNodesOrOfNone(t *testing.T) {
	for name, test := range map[string]struct {
		files []string
		want  error
	}{
		"new":              {nil, nil},
		"identities alone": {[]string{"n1/identity.json", "n2/identity.json"}, nil},
		"all logs":         {[]string{"n1/raft.db", "n2/raft.db", "n3/raft.db"}, nil},
		"some logs": {
			[]string{"n1/raft.db", "n2/identity.json", "n3/identity.json"},
			ErrConfig,
		},
		"logs of more nodes": {[]string{
			"n1/raft.db", "n2/raft.db", "n3/raft.db", "n4/raft.db",
			"n5/raft.db",
		}, ErrConfig},
		"the log of one node":   {[]string{"n1/raft.db"}, ErrConfig},
		"folders without a log": {[]string{"n1/audit.jsonl"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Cluster{folder: t.TempDir(), config: Config{Nodes: 3}}
			for _, file := range test.files {
				path := filepath.Join(c.folder, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.checkFolder(); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}
