package fsm

import (
	"bytes"
	"encoding/binary"
	"testing"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

// testLeader feeds a machine with entries as a leader would, and keeps the log.
type testLeader struct {
	t       fataler
	m       *Machine
	index   uint64
	term    uint64
	number  uint64
	elapsed int64
	wall    int64
	ids     uint64
	log     []logged
}

type logged struct {
	index, term uint64
	data        []byte
}

const startWall = 1_696_374_425_000

// newLeader returns a leader of a new store.
func newLeader(t fataler) *testLeader {
	l := &testLeader{t: t, m: New(), wall: startWall}
	l.start()
	return l
}

// in makes the leader's methods report failures to a subtest, until that ends.
func (l *testLeader) in(t *testing.T) {
	outer := l.t
	l.t = t
	t.Cleanup(func() { l.t = outer })
}

// fataler is what a testing.TB and a rapid.T have in common here.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// start begins the next term.
func (l *testLeader) start() {
	l.t.Helper()
	l.term++
	l.number, l.elapsed = 0, 0
	l.append(&Entry{Commands: []Command{{
		Kind: KindLeaderStart, Nonce: l.term * 7,
		Version: Version,
	}}})
}

func (l *testLeader) append(entry *Entry) *EntryOutcome {
	l.t.Helper()
	l.index++
	data := AppendEntry(nil, entry)
	l.log = append(l.log, logged{l.index, l.term, data})
	outcome, err := l.m.Apply(l.index, l.term, data)
	if err != nil {
		l.t.Fatalf("apply: %v", err)
	}
	return outcome
}

// apply applies the commands in one entry.
func (l *testLeader) apply(commands ...Command) *EntryOutcome {
	l.t.Helper()
	l.number++
	return l.append(&Entry{
		Term: l.term, Number: l.number, Elapsed: l.elapsed, Wall: l.wall,
		Commands: commands,
	})
}

// do applies one command and returns its result.
func (l *testLeader) do(command Command) Result {
	l.t.Helper()
	return l.apply(command).Results[0]
}

// pass advances cluster time and the cluster clock by some milliseconds, and applies an empty
// entry.
func (l *testLeader) pass(ms int64) *EntryOutcome {
	l.t.Helper()
	l.elapsed += ms
	l.wall += ms
	return l.apply()
}

func (l *testLeader) configure(change func(*Settings)) {
	l.t.Helper()
	settings, _ := l.m.Settings()
	change(&settings)
	l.do(Command{Kind: KindConfigure, Settings: &settings})
}

func (l *testLeader) newID() (id RequestID) {
	l.ids++
	binary.LittleEndian.PutUint64(id[:], l.ids)
	return id
}

func (l *testLeader) get(key string) Result {
	return l.m.Read(&Command{Kind: KindGet, Key: []byte(key)})
}

func (l *testLeader) snapshot() []byte {
	l.t.Helper()
	var buffer bytes.Buffer
	taken := l.m.Snapshot()
	defer taken.Release()
	if err := taken.Write(&buffer); err != nil {
		l.t.Fatal(err)
	}
	return buffer.Bytes()
}

func client(id string) policy.Principal { return policy.Principal{ClientID: id} }

func stamp(wall int64) hlc.Timestamp { return hlc.Timestamp{Wall: wall, NodeID: "c"} }

func (l *testLeader) set(key, value string, change ...func(*Command)) Command {
	c := Command{
		Kind: KindSet, Principal: client("c"), Key: []byte(key), Value: []byte(value),
		Timestamp: stamp(l.wall), Lifetime: 180_000,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// Each function below, up to expecting, changes what set, del or vdel returns.

func token(wall int64) func(*Command) {
	return func(c *Command) { c.Token = hlc.Timestamp{Wall: wall, NodeID: hlc.StoreNodeID} }
}
func ttl(ms int64) func(*Command)     { return func(c *Command) { c.TTL = ms } }
func id(id RequestID) func(*Command)  { return func(c *Command) { c.ID = id } }
func from(name string) func(*Command) { return func(c *Command) { c.Principal = client(name) } }

func when(condition Condition) func(
	*Command) {
	return func(c *Command) { c.Condition = condition }
}

func expecting(value string) func(*Command) {
	return func(c *Command) { c.Condition, c.Expected = IfAbsentOrEqual, []byte(value) }
}

func watching(clientID, key string) Command {
	return Command{Kind: KindKeyNotify, Principal: client(clientID), Key: []byte(key)}
}

// watchingPattern is watching, of all keys that match a pattern.
func watchingPattern(clientID, pattern string) Command {
	command := watching(clientID, pattern)
	command.Pattern = true
	return command
}

func del(key string, change ...func(*Command)) Command {
	c := Command{Kind: KindDel, Principal: client("c"), Key: []byte(key), Lifetime: 180_000}
	for _, f := range change {
		f(&c)
	}
	return c
}

func vdel(key, value string, change ...func(*Command)) Command {
	c := del(key, change...)
	c.Kind, c.Value = KindVDel, []byte(value)
	return c
}

func (l *testLeader) want(name string, got Result, code Code, err ErrorCode) {
	l.t.Helper()
	if got.Code != code || got.Error != err {
		l.t.Errorf("%s: code %d, error %q; want code %d, error %q", name, got.Code,
			got.Error.Text(), code, err.Text())
	}
}

// remembered returns the outcome of a request from the dedup table, and whether it is there. The
// index is that of the entry that decided it, or of the KindRestore that brought it.
func (m *Machine) remembered(id RequestID) (Result, uint64, bool) {
	earlier, ok := m.dedup.find(id)
	return m.dedup.result(&earlier), earlier.index, ok
}

// remembersFor reports whether the outcome of a request is remembered for at least while more
// milliseconds of cluster time.
func (m *Machine) remembersFor(id RequestID, while int64) bool {
	earlier, ok := m.dedup.find(id)
	return ok && earlier.expires >= m.now+while
}

// toldOf returns the remembered outcome of a request as a copy of it gets it. If none is
// remembered, that is the zero Result.
func (m *Machine) toldOf(command *Command) Result {
	earlier, ok := m.dedup.find(command.ID)
	if !ok {
		return Result{}
	}
	return m.outcomeFor(command, &earlier)
}
