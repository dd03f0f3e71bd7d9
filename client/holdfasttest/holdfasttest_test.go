package holdfasttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Start brings up a store that works, in a time that tests can afford.
func TestStartBringsUpAStoreThatWorks(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			began := time.Now()
			store := Start(t, Nodes(nodes))
			took := time.Since(began)
			t.Logf("%d nodes serve after %v", nodes, took.Round(time.Millisecond))
			if most := 10 * time.Second; took > most {
				// a second or two on a machine that has nothing else to do
				t.Errorf("%d nodes take %v", nodes, took)
			}
			c := store.Client(t)
			if _, err := c.Set(t.Context(), "k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			if value, _, err := store.Client(t).Get(t.Context(), "k"); err != nil ||
				string(value) != "v" {
				t.Errorf("%q, %v", value, err)
			}
		})
	}
}

// Stores do not see each other, and a policy is obeyed.
func TestStoresAreSeparateAndObeyTheirPolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file,
		[]byte("principals: {clientIds: [\"nobody\"]}\nstateStoreResources: [{method: Read, keys: [\"*\"]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, closed := Start(t), Start(t, Policy(file))
	if open.URL() == closed.URL() {
		t.Errorf("both at %s", open.URL())
	}
	if _, err := open.Client(t).Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
	other := Start(t)
	if _, _, err := other.Client(t).Get(t.Context(), "k"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a key of another store: %v", err)
	}
	if _, err := closed.Client(t).Set(t.Context(), "k", nil); !errors.Is(err,
		client.ErrNotAuthorized) {
		t.Errorf("the policy is not obeyed: %v", err)
	}
}
