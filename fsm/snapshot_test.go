package fsm

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/hlc"
	"holdfast/internal/glob"
	"holdfast/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files that are missing")

// everything returns a leader whose state has something in every section.
func everything(t testing.TB) *testLeader {
	l := newLeader(t)
	rules, err := policy.Compile([]policy.Rule{{
		ClientIDs: []string{"c", "line-*"}, Usernames: []string{""},
		Attributes: [][]policy.Attribute{{{Name: "site", Value: "a"}}},
		Resources: []policy.Resource{
			{Access: policy.ReadWrite, Keys: []string{"*", ""}},
			{Access: policy.Read, KeyType: policy.Binary, Keys: []string{"AP8="}},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.configure(func(s *Settings) {
		s.Policy, s.CaseInsensitive, s.Dialect, s.WatchTTL = rules, true, DialectRuleSDK, 1_000_000
		s.Limits.DedupEntries = 10
	})
	l.apply(
		l.set("plain", "value"),
		l.set("empty", "", func(c *Command) { c.Principal.Username = "u" }),
		l.set("\x00\xff", "\r\n", ttl(60_000), token(l.wall)),
		l.set("lock", "me", ttl(10_000), id(l.newID()),
			func(c *Command) { c.Token = hlc.Timestamp{Wall: 7, Counter: 9, NodeID: "other"} }),
		watching("c", "plain"), watching("line-1", "plain"), watching("line-1", "none"),
		Command{
			Kind:     KindReject,
			Rejected: []Rejection{{ID: l.newID(), ClientID: "line-2", Lifetime: 99_000}},
		},
	)
	l.apply(l.set("plain", "changed", id(l.newID())), del("plain"),
		vdel("none", "x", id(l.newID())))
	all := watchingPattern("line-1", "p*")
	all.Principal.Username, all.Principal.Attributes = "u",
		[]policy.Attribute{{Name: "site", Value: "a"}}
	l.apply(all, watchingPattern("c", "plain"), l.set("p", "changed"))
	read := Command{Kind: KindGet, Key: []byte("p")}
	l.apply(Command{
		Kind: KindTxn, ID: l.newID(), Principal: client("c"), Timestamp: stamp(l.wall),
		Lifetime:   180_000,
		Operations: []Command{read, del("none"), l.set("plain", "again")},
	})
	l.configure(func(s *Settings) {
		s.Mirrors = []Mirror{
			{Keys: "p*", Topic: "dashboard/"},
			{Keys: "*", Topic: "all/"},
		}
	})
	l.number++
	l.append(&Entry{
		Term: l.term, Number: l.number, Elapsed: 5, Wall: l.wall, Published: 1,
		HorizonAge: 2,
	})
	return l
}

// Old snapshots of every released format stay readable. New files are added to testdata/snapshot,
// and existing ones are never rewritten.
func TestOldSnapshotsStayReadable(t *testing.T) {
	for _, file := range []string{"format-1.snap"} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join("testdata", "snapshot", file)
			l := everything(t)
			data, err := os.ReadFile(path)
			if *update && errors.Is(err, fs.ErrNotExist) {
				data = l.snapshot()
				err = os.WriteFile(path, data, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			restored := New()
			if err := restored.Restore(bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			if got, want := restored.Status(), l.m.Status(); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			if restored.scanSecret != l.m.scanSecret || restored.scanSecret == 0 {
				t.Errorf("the secret of tokens is %d, want %d", restored.scanSecret, l.m.scanSecret)
			}
			if !bytes.Equal(data, l.snapshot()) {
				t.Error("a snapshot of the same state has other bytes now; a change of the format needs a new number")
			}
		})
	}
}

func TestSnapshotIsRefusedWhenDamaged(t *testing.T) {
	l := everything(t)
	data := l.snapshot()
	m := New()
	for i := range data {
		flipped := bytes.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		if err := m.Restore(bytes.NewReader(flipped)); !errors.Is(err, ErrDamaged) &&
			!(i >= 8 && i < 12 && errors.Is(err, ErrUnknown)) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if err := m.Restore(bytes.NewReader(data[:i])); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if err := m.Restore(bytes.NewReader(append(bytes.Clone(data), 0))); !errors.Is(err,
		ErrDamaged) {
		t.Errorf("a byte too many: %v", err)
	}
	if m.Status() != New().Status() {
		t.Error("a refused snapshot left something behind")
	}
	if err := l.m.Restore(bytes.NewReader(data[:50])); err == nil ||
		!bytes.Equal(l.snapshot(), data) {
		t.Error("a refused snapshot changed the state")
	}
}

// Inspect reports of a snapshot what Status reports after a restore of it, and refuses what Restore
// refuses.
func TestInspectAgreesWithRestore(t *testing.T) {
	l := everything(t)
	data := l.snapshot()
	restored := New()
	if err := restored.Restore(bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	got, err := Inspect(bytes.NewReader(data))
	want := restored.Status()
	if err != nil || got.Index != want.Index || got.Hash != want.Hash || got.Keys != want.Keys ||
		got.Bytes != want.Bytes || got.Watches != want.Watches ||
		got.Remembered != want.Remembered || got.ReplyBytes != want.ReplyBytes || want.Keys == 0 ||
		want.Watches == 0 || want.Remembered == 0 || want.ReplyBytes == 0 {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for i := range data {
		flipped := bytes.Clone(data)
		flipped[i] ^= 1 << (i % 8)
		if _, err := Inspect(bytes.NewReader(flipped)); err == nil {
			t.Fatalf("byte %d flipped: nothing is noticed", i)
		}
		if _, err := Inspect(bytes.NewReader(data[:i])); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
}

// Inspect reads a large snapshot in several parts. It reports the keys and bytes of all parts
// together.
func TestInspectAddsUpTheParts(t *testing.T) {
	l := newLeader(t)
	for i := range 40 {
		l.apply(l.set(fmt.Sprint("key", i), strings.Repeat("x", 1<<20)))
	}
	want := l.m.Status()
	if got, err := Inspect(bytes.NewReader(l.snapshot())); err != nil || got.Keys != 40 ||
		got.Keys != want.Keys || got.Bytes != want.Bytes {
		t.Errorf("%d keys of %d bytes, %v; want %d of %d", got.Keys, got.Bytes, err, want.Keys,
			want.Bytes)
	}
}

// A snapshot does not change while the machine goes on.
func TestSnapshotIsIsolated(t *testing.T) {
	l := everything(t)
	want := l.snapshot()
	taken := l.m.Snapshot()
	for i := range 300 {
		l.apply(l.set(fmt.Sprint("k", i), "v", id(l.newID()), ttl(5)),
			watching("c", fmt.Sprint("k", i)), del("plain"))
		l.pass(10)
	}
	var buffer bytes.Buffer
	if err := taken.Write(&buffer); err != nil || !bytes.Equal(buffer.Bytes(), want) {
		t.Fatalf("the snapshot changed, error %v", err)
	}
}

// The same log gives the same hash and the same bytes: applied twice, and applied after a snapshot
// and restore at any index.
func TestSameLogGivesTheSameState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t)
		first := New()
		var hashes []uint64
		for _, entry := range log {
			applyLogged(t, first, entry)
			hashes = append(hashes, first.Status().Hash)
		}
		want := snapshotOf(t, first)
		cut := rapid.IntRange(0, len(log)).Draw(t, "cut")
		second := New()
		for i, entry := range log {
			if i == cut {
				restored := New()
				if err := restored.Restore(bytes.NewReader(snapshotOf(t, second))); err != nil {
					t.Fatal(err)
				}
				second = restored
			}
			applyLogged(t, second, entry)
			if hash := second.Status().Hash; hash != hashes[i] {
				t.Fatalf("hashes differ at entry %d, restored at %d", i, cut)
			}
		}
		if !bytes.Equal(snapshotOf(t, second), want) {
			t.Fatalf("snapshots differ, restored at %d", cut)
		}
	})
}

// The same for one long log, at every index.
func TestDeterminismAtEveryIndex(t *testing.T) {
	l := everything(t)
	for i := range 40 {
		l.elapsed += int64(i * 100)
		l.apply(l.set(fmt.Sprint(i%7), fmt.Sprint(i), ttl(int64(300*i)), id(l.newID())),
			watching(fmt.Sprint("line-", i%3), fmt.Sprint(i%7)),
			vdel(fmt.Sprint(i%5), fmt.Sprint(i-2)))
		if i%10 == 9 {
			l.start()
		}
	}
	want := l.snapshot()
	for cut := range l.log {
		m := New()
		for i, entry := range l.log {
			if i == cut {
				data := snapshotOf(t, m)
				m = New()
				if err := m.Restore(bytes.NewReader(data)); err != nil {
					t.Fatal(err)
				}
			}
			applyLogged(t, m, entry)
		}
		if !bytes.Equal(snapshotOf(t, m), want) {
			t.Fatalf("restored at %d: other bytes", cut)
		}
	}
}

func snapshotOf(t fataler, m *Machine) []byte {
	t.Helper()
	var buffer bytes.Buffer
	if err := m.Snapshot().Write(&buffer); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func applyLogged(t fataler, m *Machine, entry logged) *EntryOutcome {
	t.Helper()
	outcome, err := m.Apply(entry.index, entry.term, entry.data)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

func FuzzRestore(f *testing.F) {
	l := everything(f)
	f.Add(l.snapshot())
	f.Add(newLeader(f).snapshot())
	f.Add(everything(f).snapshot())
	f.Fuzz(func(t *testing.T, data []byte) {
		m := New()
		if m.Restore(bytes.NewReader(data)) == nil {
			snapshotOf(t, m)
		}
	})
}

// FuzzFrames tests the content of frames. It leaves out the checksum and the compression, which
// random bytes never pass.
func FuzzFrames(f *testing.F) {
	f.Add(byte(sectionValue), appendRecord(nil,
		newRecord([]byte("k"), []byte("v"), hlc.Clock{Wall: 1}, 5,
			make(owners).holding(Owner{"c", true}, hlc.Timestamp{Wall: 2, NodeID: "x"}, nil))))
	settings := DefaultSettings()
	f.Add(byte(sectionSettings), appendSettings(nil, &settings))
	settings.Mirrors = []Mirror{{Keys: "line/*", Topic: "mirror/"}}
	f.Add(byte(sectionSettings), appendSettings(nil, &settings))
	f.Add(byte(sectionWatch), appendWatch(nil,
		&watch{watchID: watchID{key: "k", clientID: "c"}, index: 3}))
	everyKey, _ := glob.Compile("k*")
	f.Add(byte(sectionWatch), appendWatch(nil,
		&watch{
			watchID: watchID{"k*", true, "c"},
			pattern: &watchedPattern{everyKey, policy.Principal{Username: "u"}},
		}))
	f.Add(byte(sectionDedup), (&Snapshot{}).appendDedupEntry(nil,
		&dedupEntry{code: CodeOK, index: 4}))
	remembered := newReplyTable()
	remembered.put(newKeptReplies(RequestID{}, 0,
		[]Result{{Code: CodeValue, Value: "v"}, {Code: CodeOK}}))
	f.Add(byte(sectionDedup), (&Snapshot{replies: remembered.byID}).appendDedupEntry(nil,
		&dedupEntry{code: CodeReplies, index: 4}))
	f.Add(byte(sectionUnpublished),
		appendEvent(nil, &Event{Index: 4, Key: "k", Receivers: []Receiver{{"c", SDK}}}))
	f.Fuzz(func(t *testing.T, kind byte, content []byte) {
		m := New()
		if m.readFrame(section(kind), content) == nil {
			snapshotOf(t, m)
		}
	})
}

func BenchmarkSnapshotWrite(b *testing.B) {
	l := newLeader(b)
	for i := range 100_000 {
		l.m.values.put(newRecord(fmt.Appendf(nil, "key-%016d", i), make([]byte, 100),
			hlc.Clock{Wall: int64(i)}, noDeadline,
			l.m.values.owners.holding(Owner{Name: "c"}, hlc.Timestamp{}, nil)))
	}
	b.ReportAllocs()
	for b.Loop() {
		snapshotOf(b, l.m)
	}
}
