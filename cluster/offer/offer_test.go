package offer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/cluster/peer"
	"holdfast/fsm"
	"holdfast/internal/policy"
)

// fake is the Environment of one member's Offerer, which offers the member's settings to the
// cluster. Settings that it executes are in force on this member at once.
type fake struct {
	remembered []byte // the member's last offer, as it is stored
	inForce    *fsm.Settings
	serving    bool
	leader     *fake // receives this member's offers; nil drops them
	executed   []fsm.Command
	memory     int64 // least memory of the members
	knowsAll   bool  // every member's
	passedOn   int   // offers given to the leader
}

func (f *fake) Load() ([]byte, error) { return f.remembered, nil }

func (f *fake) Save(data []byte) error {
	f.remembered = data
	return nil
}

func (f *fake) env() Environment {
	return Environment{
		Offered: f, Serving: func() bool { return f.serving },
		Behind: func() bool { return false },
		Settings: func() (fsm.Settings, bool) {
			if f.inForce == nil {
				return fsm.Settings{}, false
			}
			return *f.inForce, true
		},
		Execute: func(_ context.Context, c fsm.Command) (fsm.Result, error) {
			if !f.serving {
				return fsm.Result{}, peer.ErrNotLeader
			}
			f.executed = append(f.executed, c)
			before := f.inForce
			f.inForce = c.Settings
			if c.KeepPolicy && before != nil {
				f.inForce.Policy = before.Policy
			}
			return fsm.Result{}, nil
		},
		CallLeader: func(ctx context.Context, method peer.Method, request []byte) ([]byte, error) {
			if method == peer.MethodOffer && len(request) > 0 {
				f.passedOn++
			}
			if f.leader == nil {
				return nil, nil
			}
			return nil, New(Offer{}, f.leader.env()).Handle(ctx, request)
		},
		AutoTotalBytes: func() (int64, bool) { return f.memory, f.knowsAll },
		Log:            slog.New(slog.DiscardHandler),
	}
}

func withKeys(keys int64) Offer {
	settings := fsm.DefaultSettings()
	settings.Limits.Keys = keys
	return Offer{Settings: settings}
}

// memoryOf returns what a member stores after an offer.
func memoryOf(offer Offer) []byte {
	f := offer.fingerprint()
	return f.bytes()
}

func mustOffer(t *testing.T, o *Offerer) {
	t.Helper()
	if err := o.Offer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A member that offers the same again changes nothing: another one may have changed the settings
// since.
func TestOfferIsMadeOnce(t *testing.T) {
	f := &fake{serving: true}
	mustOffer(t, New(withKeys(5), f.env()))
	other := fsm.DefaultSettings()
	other.Limits.Keys = 7
	f.inForce = &other
	restarted := New(withKeys(5), f.env())
	mustOffer(t, restarted)
	if f.inForce.Limits.Keys != 7 || len(f.executed) != 1 {
		t.Errorf("%d keys are in force after %d offers", f.inForce.Limits.Keys, len(f.executed))
	}
	restarted.Set(withKeys(9))
	mustOffer(t, restarted)
	if f.inForce.Limits.Keys != 9 || len(f.executed) != 2 {
		t.Errorf("after a change: %d keys are in force after %d offers", f.inForce.Limits.Keys,
			len(f.executed))
	}
}

// † limits.totalBytes: auto is by the member with the least memory: it falls as soon as such a
// member is there, and rises when every member is known to have more. The leader leaves a number
// that an operator has set.
func TestAutoTotalBytesFollowsTheLeastMemory(t *testing.T) {
	auto := withKeys(5)
	auto.Settings.TotalBytesAuto, auto.Settings.Limits.TotalBytes = true, 0
	f := &fake{serving: true, memory: 1000}
	o := New(auto, f.env())
	mustOffer(t, o)
	for _, step := range []struct {
		memory int64
		all    bool
		want   int64
	}{
		{1000, true, 1000},
		{300, false, 300},
		{900, false, 300},
		{900, true, 900},
		{200, true, 200},
	} {
		f.memory, f.knowsAll = step.memory, step.all
		if err := o.followMemory(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := f.inForce.Limits.TotalBytes; got != step.want || !f.inForce.TotalBytesAuto {
			t.Fatalf("least memory %d, all known %t: %d is in force, want %d", step.memory,
				step.all, got, step.want)
		}
	}
	f.memory, f.knowsAll = 5000, false // the member with the least memory is away
	withMirror := auto
	withMirror.Settings.Mirrors = []fsm.Mirror{{Keys: "*", Topic: "all/"}}
	o.Set(withMirror)
	mustOffer(t, o)
	if f.inForce.Limits.TotalBytes != 200 {
		t.Errorf("another change raises it to %d", f.inForce.Limits.TotalBytes)
	}
	o.Set(auto)
	mustOffer(t, o)
	f.memory, f.knowsAll = 200, true
	f.executed = nil
	restarted := New(auto, f.env())
	mustOffer(t, restarted)
	if len(f.executed) != 0 {
		t.Error("a restart offers it again")
	}
	other := withKeys(6)
	other.Settings.TotalBytesAuto, other.Settings.Limits.TotalBytes = true, 0
	restarted.Set(other)
	mustOffer(t, restarted)
	if f.inForce.Limits.TotalBytes != 200 || f.inForce.Limits.Keys != 6 {
		t.Errorf("after another change: %+v", f.inForce.Limits)
	}
	other.Settings.TotalBytesAuto, other.Settings.Limits.TotalBytes = false, 5000
	restarted.Set(other)
	mustOffer(t, restarted)
	if err := restarted.followMemory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.inForce.Limits.TotalBytes != 5000 {
		t.Errorf("a number that was set became %d", f.inForce.Limits.TotalBytes)
	}
}

// A member that remembers no offer is new, or has lost its disk. It leaves the settings in force as
// they are.
func TestMemberWithoutAMemoryChangesNothing(t *testing.T) {
	other := fsm.DefaultSettings()
	other.Limits.Keys = 7
	f := &fake{serving: true, inForce: &other}
	mustOffer(t, New(withKeys(5), f.env()))
	if len(f.executed) != 0 || f.remembered == nil {
		t.Errorf("%d offers, remembered: %v", len(f.executed), f.remembered != nil)
	}
}

// A change of the policy alone brings back no older settings, and a change of the settings no older
// policy.
func TestOnlyWhatChangedIsOffered(t *testing.T) {
	compiled, err := policy.Compile([]policy.Rule{{ClientIDs: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{serving: true}
	o := New(withKeys(5), f.env())
	mustOffer(t, o)
	other := fsm.DefaultSettings()
	other.Limits.Keys = 7 // another member has set it since
	f.inForce = &other
	shut := withKeys(5)
	shut.Settings.Policy = compiled
	o.Set(shut)
	mustOffer(t, o)
	if f.inForce.Limits.Keys != 7 || f.inForce.Policy != compiled {
		t.Errorf("%d keys, policy %v", f.inForce.Limits.Keys, f.inForce.Policy)
	}
	f.inForce.Policy = nil // another member has opened it since
	shut.Settings.Limits.Keys = 9
	o.Set(shut)
	mustOffer(t, o)
	if f.inForce.Limits.Keys != 9 || f.inForce.Policy != nil {
		t.Errorf("%d keys, policy %v", f.inForce.Limits.Keys, f.inForce.Policy)
	}
}

// A node whose policy file is removed proposes nothing: the policy in force stays.
func TestRemovedPolicyFileIsNoProposal(t *testing.T) {
	compiled, err := policy.Compile([]policy.Rule{{ClientIDs: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	withPolicy, keepsPolicy := withKeys(5), withKeys(5)
	withPolicy.Settings.Policy, keepsPolicy.KeepPolicy = compiled, true
	f := &fake{serving: true, inForce: &withPolicy.Settings, remembered: memoryOf(withPolicy)}
	mustOffer(t, New(keepsPolicy, f.env()))
	if len(f.executed) != 0 || f.inForce.Policy != compiled ||
		!bytes.Equal(f.remembered, memoryOf(keepsPolicy)) {
		t.Errorf("%d proposals, policy %v", len(f.executed), f.inForce.Policy)
	}
}

// A member that does not lead gives its offer to the leader, and takes that of another member only
// where it leads.
func TestOfferGoesByWayOfTheLeader(t *testing.T) {
	inForce := withKeys(4).Settings
	f := &fake{inForce: &inForce, remembered: memoryOf(withKeys(4))}
	wanted := withKeys(5)
	mustOffer(t, New(wanted, f.env()))
	if f.passedOn != 1 {
		t.Errorf("%d offers are given to the leader", f.passedOn)
	}
	if err := New(wanted, f.env()).Handle(t.Context(), wanted.encode(whole)); !errors.Is(err,
		peer.ErrNotLeader) {
		t.Errorf("at a member that does not lead: %v", err)
	}
	f.serving = true
	if err := New(wanted, f.env()).Handle(t.Context(), wanted.encode(whole)); err != nil ||
		f.inForce.Limits.Keys != 5 {
		t.Errorf("at the leader: %v, %+v", err, f.inForce)
	}
	other := fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{{Kind: fsm.KindAdvance}}})
	for _, request := range [][]byte{other, []byte("x"), wanted.encode(allParts + 1)} {
		t.Run(fmt.Sprintf("%q", request), func(t *testing.T) {
			if err := New(wanted, f.env()).Handle(t.Context(), request); !errors.Is(err,
				peer.ErrRefused) {
				t.Errorf("%q is no offer: %v", request, err)
			}
		})
	}
}

// withMirrors is withKeys, of a node that has mirrors.
func withMirrors(keys int64, mirrors ...fsm.Mirror) Offer {
	offer := withKeys(keys)
	offer.Settings.Mirrors = mirrors
	return offer
}

// Mirrors that are added, changed and removed on a node that does not lead are each offered to the
// leader.
func TestFollowersMirrorsAreOfferedToTheLeader(t *testing.T) {
	f := &fake{serving: true}
	mustOffer(t, New(withKeys(5), f.env()))
	f.serving = false
	for i, mirrors := range [][]fsm.Mirror{
		{{Keys: "a*", Topic: "a/"}},
		{{Keys: "b*", Topic: "a/"}},
		nil,
	} {
		mustOffer(t, New(withMirrors(5, mirrors...), f.env()))
		if f.passedOn != i+1 {
			t.Errorf("%d mirrors: %d offers were passed on, want %d", len(mirrors), f.passedOn, i+1)
		}
	}
}

// A member that is catching up has older settings in its state. Its offer changes one part of the
// cluster's settings, and brings back no older ones.
func TestMemberThatIsBehindBringsBackNoSettings(t *testing.T) {
	compiled, err := policy.Compile([]policy.Rule{{ClientIDs: []string{"*"}}})
	if err != nil {
		t.Fatal(err)
	}
	shut := withKeys(7)
	shut.Settings.Policy = compiled
	for name, test := range map[string]struct {
		wanted Offer
		added  func(fsm.Settings) bool
	}{
		"mirrors": {
			withMirrors(7, fsm.Mirror{Keys: "*", Topic: "all/"}),
			func(s fsm.Settings) bool { return len(s.Mirrors) == 1 },
		},
		"a policy": {shut, func(s fsm.Settings) bool { return s.Policy != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			offered, older, newest := withKeys(7), withKeys(5).Settings, withKeys(9).Settings
			leader := &fake{serving: true, inForce: &newest}
			f := &fake{inForce: &older, leader: leader, remembered: memoryOf(offered)}
			mustOffer(t, New(test.wanted, f.env()))
			if leader.inForce.Limits.Keys != 9 || !test.added(*leader.inForce) {
				t.Errorf("%+v is in force", leader.inForce)
			}
		})
	}
}

// If a node changes its limits per client from none to some, they replace the limits that another
// node has set.
func TestClientLimitsChangedFromNoneComeIntoForce(t *testing.T) {
	withLimits := func(limit int64) Offer {
		o := withKeys(5)
		o.Settings.Limits.WatchesPerClient, o.Settings.Limits.DedupPerClient = limit, limit
		return o
	}
	f := &fake{serving: true}
	mustOffer(t, New(withLimits(0), f.env()))
	others := withLimits(50).Settings
	f.inForce = &others
	mustOffer(t, New(withLimits(100), f.env()))
	if limits := f.inForce.Limits; limits.WatchesPerClient != 100 || limits.DedupPerClient != 100 {
		t.Errorf("%+v is in force", limits)
	}
}

// A member offers nothing before it has caught up.
func TestNothingIsOfferedBehindTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		older := withKeys(5).Settings
		offered := withKeys(7)
		f := &fake{inForce: &older, remembered: memoryOf(offered)}
		var behind atomic.Bool
		behind.Store(true)
		env := f.env()
		env.Behind = behind.Load
		o := New(withKeys(9), env)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { o.Run(ctx) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.passedOn != 0 {
			t.Errorf("%d offers before it has caught up", f.passedOn)
		}
		behind.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.passedOn != 1 {
			t.Errorf("%d offers after it has caught up", f.passedOn)
		}
		stop()
		running.Wait()
	})
}

// A node without mirrors that changes a limit leaves the cluster's mirrors in force.
func TestChangeOfALimitKeepsTheMirrors(t *testing.T) {
	inForce := withMirrors(5, fsm.Mirror{Keys: "*", Topic: "all/"}).Settings
	f := &fake{serving: true, inForce: &inForce, remembered: memoryOf(withKeys(5))}
	mustOffer(t, New(withKeys(7), f.env()))
	if f.inForce.Limits.Keys != 7 || len(f.inForce.Mirrors) != 1 {
		t.Errorf("%+v is in force", f.inForce)
	}
}

// The warning about settings that differ says which ones do.
func TestDifferencesNameTheSettings(t *testing.T) {
	here, inForce := fsm.DefaultSettings(), fsm.DefaultSettings()
	if got := differences(&here, &inForce); len(got) != 0 {
		t.Errorf("equal settings: %q", got)
	}
	here.Limits.TotalBytes, here.WatchTTL, here.Mirrors = 1<<20, 5,
		[]fsm.Mirror{{Keys: "*", Topic: "m/"}}
	want := []string{
		"limits.totalBytes: here 1048576, in force 1073741824",
		"watch.ttl (ms): here 5, in force 0", "mirrors",
	}
	if got := differences(&here, &inForce); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
