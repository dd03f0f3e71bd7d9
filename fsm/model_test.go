package fsm

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/hlc"
	"holdfast/internal/policy"
)

// model is the store as a reader of the protocol page would write it down: maps, scans, no
// cleverness. It shares no code with the machine beyond commands, timestamps and the texts of
// errors.
type model struct {
	now, wall      int64
	leaderStart    int64 // cluster time when the leader began
	clock, counter int64 // of the last version
	keys           map[string]modelValue
	watching       map[modelWatch]bool
	done           map[RequestID]modelDone
	share          int // how many keys a client may have
}

type modelWatch struct {
	client, key string
	pattern     bool
}

// covers reports whether the watch is of a key. The patterns are those of drawOf.
func (w modelWatch) covers(key string) bool {
	switch {
	case !w.pattern:
		return w.key == key
	case w.key == "*":
		return true
	case w.key == "[xy]":
		return key == "x" || key == "y"
	case w.key == "z*":
		return key[0] == 'z'
	default:
		return w.key == key
	}
}

type modelValue struct {
	value    string
	version  string
	deadline int64 // 0: none
	token    *hlc.Timestamp
	owner    string
}

type modelDone struct {
	reply string
	until int64
}

func (m *model) expire(told *[]string) {
	type due struct {
		deadline int64
		key      string
	}
	var all []due
	for key, v := range m.keys {
		if v.deadline != 0 && v.deadline <= m.now {
			all = append(all, due{v.deadline, key})
		}
	}
	slices.SortFunc(all, func(a, b due) int {
		if a.deadline != b.deadline {
			return int(a.deadline - b.deadline)
		}
		if a.key < b.key {
			return -1
		}
		return 1
	})
	for _, d := range all {
		m.notify(told, d.key, "gone", m.keys[d.key].version)
		delete(m.keys, d.key)
	}
	// The machine forgets in steps of 1024 ms.
	maps.DeleteFunc(m.done, func(_ RequestID,
		d modelDone,
	) bool {
		return (d.until+1023)/1024*1024 <= m.now
	})
}

func (m *model) notify(told *[]string, key, what, version string) {
	var clients []string
	for w := range m.watching {
		if w.covers(key) {
			clients = append(clients, w.client)
		}
	}
	slices.Sort(clients)
	for _, c := range slices.Compact(clients) {
		*told = append(*told, fmt.Sprintf("%s: %q %s %s", c, key, what, version))
	}
}

func (m *model) execute(c *Command, told *[]string) string {
	if d, ok := m.done[c.ID]; ok && c.Kind != KindGet {
		d.until = max(d.until, m.now+c.Lifetime)
		m.done[c.ID] = d
		return d.reply
	}
	reply := m.run(c, told)
	if !c.ID.IsZero() && c.Kind != KindGet {
		m.done[c.ID] = modelDone{reply, m.now + c.Lifetime}
	}
	return reply
}

func (m *model) run(c *Command, told *[]string) string {
	key := string(c.Key)
	v, exists := m.keys[key]
	w := modelWatch{c.Principal.ClientID, key, c.Pattern}
	switch c.Kind {
	case KindTxn:
		return m.transact(c, told)
	case KindGet:
		if !exists {
			return "null"
		}
		return "value " + v.value + " " + v.version
	case KindKeyNotify:
		m.watching[w] = true
		return "ok"
	case KindKeyNotifyStop:
		if !m.watching[w] {
			return "missing"
		}
		delete(m.watching, w)
		return "ok"
	case KindSet:
		if c.Timestamp.Wall > m.wall+60_000 &&
			(c.Timestamp.Wall > m.clock || c.Timestamp.Wall == m.clock &&
				int64(c.Timestamp.Counter) > m.counter) {
			return "err " + ErrorTimestampSkew.Text()
		}
	}
	if c.Token.NodeID != "" && c.Token.Wall > m.wall+60_000 {
		return "err " + ErrorTokenSkew.Text()
	}
	if exists && v.token != nil {
		if c.Token.NodeID == "" {
			return "err " + ErrorTokenRequired.Text()
		}
		if c.Token.Compare(*v.token) < 0 {
			return "err " + ErrorTokenLower.Text()
		}
	}
	if (c.Kind == KindSet || c.Kind == KindDel) && c.Condition == IfVersion {
		switch {
		case !exists:
			return "not applied"
		case v.version != c.ExpectedVersion.String():
			return "not applied " + v.version
		}
	}
	if c.Kind != KindSet {
		switch {
		case !exists:
			return "missing"
		case c.Kind == KindVDel && v.value != string(c.Value):
			return "not applied " + v.version
		}
		delete(m.keys, key)
		m.notify(told, key, "gone", v.version)
		return "deleted " + v.version
	}
	if exists && (c.Condition == IfAbsent || c.Condition == IfAbsentOrEqual &&
		v.value != string(c.Expected)) {
		return "not applied " + v.version
	}
	owner := ownerOf(c)
	if m.owned(owner) >= m.share && (!exists || v.owner != owner) {
		return "err " + ErrorQuota.Text()
	}
	next := modelValue{
		value: string(c.Value), version: m.nextVersion(c.Timestamp), owner: owner,
	}
	if c.TTL > 0 {
		next.deadline = m.now + c.TTL + 1
	}
	if c.Token.NodeID != "" {
		t := c.Token
		next.token = &t
	}
	m.keys[key] = next
	m.notify(told, key, "set "+next.value, next.version)
	return "ok " + next.version
}

func ownerOf(c *Command) string {
	if c.Principal.Username != "" {
		return c.Principal.Username + "/"
	}
	return "/" + c.Principal.ClientID
}

// owned counts the keys of an owner.
func (m *model) owned(owner string) (count int) {
	for _, v := range m.keys {
		if v.owner == owner {
			count++
		}
	}
	return count
}

// transact checks each operation against the state before the transaction. If none is refused and
// no condition is unmet, it runs them in order.
func (m *model) transact(c *Command, told *[]string) string {
	uses := map[string][]Kind{}
	for i := range c.Operations {
		key := string(c.Operations[i].Key)
		uses[key] = append(uses[key], c.Operations[i].Kind)
	}
	for _, kinds := range uses {
		if reads := slices.Contains(kinds, KindGet) &&
			slices.ContainsFunc(kinds, func(k Kind) bool { return k != KindGet }); reads ||
			len(kinds) > 1 && !slices.Contains(kinds, KindGet) {
			return "err " + ErrorSyntax.Text()
		}
	}
	if len(c.Operations) == 0 {
		return "err " + ErrorArguments.Text()
	}
	unmet := ""
	for i := range c.Operations {
		trial := m.trial()
		switch reply := trial.run(&c.Operations[i], new([]string)); {
		case strings.HasPrefix(reply, "err"):
			return reply
		case strings.HasPrefix(reply, "not applied") && unmet == "":
			unmet = reply
		}
	}
	if unmet != "" {
		return unmet
	}
	after := m.trial()
	for i := range c.Operations {
		after.run(&c.Operations[i], new([]string))
	}
	if count := after.owned(ownerOf(c)); count > m.share && count > m.owned(ownerOf(c)) {
		return "err " + ErrorQuota.Text()
	}
	share := m.share
	m.share = math.MaxInt // an operation may need the room that a later one makes
	defer func() { m.share = share }()
	var replies, last []string
	for i := range c.Operations {
		reply := m.run(&c.Operations[i], told)
		word, version, _ := strings.Cut(reply, " ")
		switch word {
		case "ok":
			last = []string{version}
		case "value":
			word = reply[:strings.LastIndexByte(reply, ' ')]
		}
		replies = append(replies, word)
	}
	return strings.Join(append([]string{fmt.Sprintf("replies %q", replies)}, last...), " ")
}

// trial returns a copy of the model without shares. What is run on it is not to change m.
func (m *model) trial() *model {
	trial := *m
	trial.keys, trial.share = maps.Clone(m.keys), math.MaxInt
	return &trial
}

func (m *model) nextVersion(t hlc.Timestamp) string {
	top := max(m.clock, t.Wall, m.wall)
	switch {
	case top == m.clock && top == t.Wall:
		m.counter = max(m.counter, int64(t.Counter)) + 1
	case top == m.clock:
		m.counter++
	case top == t.Wall:
		m.counter = int64(t.Counter) + 1
	default:
		m.counter = 0
	}
	m.clock = top
	return fmt.Sprintf("%d:%d:StateStore", m.clock, m.counter)
}

// describe returns a result of the machine as the model writes it.
func describe(r Result) string {
	v := version(r)
	if v != "" {
		v = " " + v
	}
	switch r.Code {
	case CodeOK:
		return "ok" + v
	case CodeNotApplied:
		return "not applied" + v
	case CodeDeleted:
		return "deleted" + v
	case CodeMissing:
		return "missing" + v
	case CodeValue:
		return "value " + r.Value + v
	case CodeNull:
		return "null" + v
	case CodeReplies:
		var replies []string
		for i := range r.Replies {
			r.Replies[i].hasVersion = false // the replies to a copy have none
			replies = append(replies, describe(r.Replies[i]))
		}
		return fmt.Sprintf("replies %q", replies) + v
	default:
		return "err " + r.Error.Text() + v
	}
}

func drawCommand(t *rapid.T, wall int64) Command {
	if rapid.IntRange(0, 5).Draw(t, "transaction") > 0 {
		return drawOf(t, wall, KindSet, KindSet, KindSet, KindDel, KindVDel, KindGet, KindKeyNotify,
			KindKeyNotifyStop)
	}
	c := drawOf(t, wall, KindSet) // its times, id and lifetime are the transaction's
	c = Command{
		Kind: KindTxn, ID: c.ID, Principal: c.Principal, Lifetime: c.Lifetime,
		Timestamp: c.Timestamp, Token: c.Token,
	}
	for range rapid.IntRange(0, 3).Draw(t, "operations") {
		operation := drawOf(t, wall, KindSet, KindSet, KindDel, KindVDel, KindGet)
		operation.ID, operation.Lifetime = RequestID{}, 0
		c.Operations = append(c.Operations, operation)
	}
	c.inherit()
	return c
}

func drawOf(t *rapid.T, wall int64, kinds ...Kind) Command {
	c := Command{
		Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
		Principal: policy.Principal{ClientID: rapid.SampledFrom([]string{"a", "b"}).Draw(t,
			"client")},
		Key:      []byte(rapid.SampledFrom([]string{"x", "y", "z\x00"}).Draw(t, "key")),
		Lifetime: rapid.Int64Range(0, 4000).Draw(t, "lifetime"),
	}
	if (c.Kind == KindKeyNotify || c.Kind == KindKeyNotifyStop) &&
		rapid.Bool().Draw(t, "is pattern") {
		c.Pattern, c.Key = true,
			[]byte(rapid.SampledFrom([]string{"*", "x", "[xy]", "z*"}).Draw(t, "pattern"))
	}
	if rapid.Bool().Draw(t, "has user") {
		c.Principal.Username = rapid.SampledFrom([]string{"a", "u"}).Draw(t, "user")
	}
	if n := rapid.ByteRange(0, 40).Draw(t, "id"); n < 20 {
		c.ID[0], c.ID[15] = n, 1
	}
	value := rapid.SampledFrom([]string{"", "1", "2"})
	moment := rapid.SampledFrom([]int64{
		wall, wall - 5, wall + 1, wall + 60_000, wall + 60_001,
		wall + 70_000,
	})
	if c.Kind == KindSet || c.Kind == KindVDel {
		c.Value = []byte(value.Draw(t, "value"))
	}
	if c.Kind == KindSet {
		c.Condition = Condition(rapid.ByteRange(0, 3).Draw(t, "condition"))
		if c.Condition == IfAbsentOrEqual {
			c.Expected = []byte(value.Draw(t, "expected"))
		}
		c.TTL = rapid.SampledFrom([]int64{0, 0, 1, 100, 3000}).Draw(t, "ttl")
		c.Timestamp = hlc.Timestamp{
			Wall:    moment.Draw(t, "timestamp"),
			Counter: rapid.Uint64Range(0, 3).Draw(t, "counter"), NodeID: "c",
		}
	}
	if c.Kind == KindDel && rapid.Bool().Draw(t, "if version") {
		c.Condition = IfVersion
	}
	if c.Condition == IfVersion { // of some value, or of none
		c.ExpectedVersion = hlc.Timestamp{
			Wall:    wall + rapid.Int64Range(-3000, 0).Draw(t, "version time"),
			Counter: rapid.Uint64Range(0, 2).Draw(t, "version counter"),
			NodeID:  hlc.StoreNodeID,
		}
	}
	if c.Kind != KindGet && c.Kind != KindKeyNotify && c.Kind != KindKeyNotifyStop &&
		rapid.IntRange(0, 3).Draw(t, "fenced") == 0 {
		c.Token = hlc.Timestamp{
			Wall:   moment.Draw(t, "token time"),
			NodeID: rapid.SampledFrom([]string{"s", "t"}).Draw(t, "token node"),
		}
	}
	return c
}

func TestMachineAgreesWithTheModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			keys: map[string]modelValue{}, watching: map[modelWatch]bool{},
			done: map[RequestID]modelDone{}, share: rapid.IntRange(1, 4).Draw(rt, "share"),
		}
		l := newLeader(rt)
		l.configure(func(s *Settings) { s.Limits.KeysPerClient = int64(m.share) })
		m.wall = l.wall
		for range rapid.IntRange(1, 40).Draw(rt, "entries") {
			if rapid.IntRange(0, 15).Draw(rt, "leader") == 0 {
				m.leaderStart = m.now
				l.start()
			}
			l.elapsed += rapid.SampledFrom([]int64{0, 0, 1, 99, 100, 1500, 5000}).Draw(rt,
				"elapsed")
			l.wall += rapid.SampledFrom([]int64{0, 0, 1, 500, -300, 90_000}).Draw(rt, "wall")
			m.now, m.wall = max(m.now, m.leaderStart+l.elapsed), max(m.wall, l.wall)
			commands := make([]Command, rapid.IntRange(0, 4).Draw(rt, "commands"))
			var want, wantTold []string
			m.expire(&wantTold)
			for i := range commands {
				commands[i] = drawCommand(rt, m.wall)
				m.drawExpected(rt, &commands[i])
				for j := range commands[i].Operations {
					m.drawExpected(rt, &commands[i].Operations[j])
				}
				want = append(want, m.execute(&commands[i], &wantTold))
			}
			outcome := l.apply(commands...)
			var got, told []string
			for _, r := range outcome.Results {
				got = append(got, describe(r))
			}
			for _, e := range outcome.Events {
				for _, r := range e.Receivers {
					what := "set " + e.Value
					if e.Deleted {
						what = "gone"
					}
					told = append(told,
						fmt.Sprintf("%s: %q %s %s", r.ClientID, e.Key, what, e.Version))
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(told) != fmt.Sprint(wantTold) {
				rt.Fatalf("results\n got %q\nwant %q\ntold\n got %q\nwant %q", got, want, told,
					wantTold)
			}
		}
		for _, its := range l.m.ListOwners(10) {
			name := "/" + its.Name
			if its.IsUser {
				name = its.Name + "/"
			}
			if m.owned(name) != int(its.Keys) {
				rt.Fatalf("%s has %d keys, want %d", name, its.Keys, m.owned(name))
			}
		}
		if len(m.keys) != l.m.Status().Keys || len(m.watching) != l.m.Status().Watches ||
			len(m.done) != l.m.Status().Remembered {
			rt.Fatalf("the machine has %+v; the model has %d keys, %d watches, %d outcomes",
				l.m.Status(), len(m.keys), len(m.watching), len(m.done))
		}
	})
}

// drawExpected makes about half of the commands with IfVersion expect the version that their key
// has, if the key exists.
func (m *model) drawExpected(t *rapid.T, c *Command) {
	if v, exists := m.keys[string(c.Key)]; exists && c.Condition == IfVersion &&
		rapid.Bool().Draw(t, "the version that is there") {
		c.ExpectedVersion, _ = hlc.Parse(v.version)
	}
}

// drawLog draws a log as leaders that come and go would write it. Some entries skip numbers, or
// repeat one, or are of an earlier leader: a machine ignores them.
func drawLog(t *rapid.T) []logged {
	var log []logged
	term, number, elapsed, wall := uint64(0), uint64(0), int64(0), int64(startWall)
	for i := range rapid.IntRange(1, 40).Draw(t, "length") {
		entry := &Entry{
			Term: term, Number: number + 1, Elapsed: elapsed, Wall: wall,
			Published: rapid.Uint64Range(0, uint64(i)).Draw(t, "published"),
		}
		switch {
		case i == 0 || rapid.IntRange(0, 9).Draw(t, "start") == 0:
			term, number, elapsed = term+1, 0, 0
			entry = &Entry{Commands: []Command{{
				Kind: KindLeaderStart, Nonce: term,
				Version: Version,
			}}}
		case rapid.IntRange(0, 9).Draw(t, "out of turn") == 0:
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				entry.Number += rapid.Uint64Range(1, 2).Draw(t, "ahead")
			case 1:
				entry.Number = number
			default:
				entry.Term-- // 0 with the first leader
			}
		default:
			number++
		}
		elapsed += rapid.Int64Range(0, 3000).Draw(t, "elapsed")
		wall += rapid.Int64Range(-1000, 3000).Draw(t, "wall")
		if entry.Term != 0 {
			for range rapid.IntRange(0, 5).Draw(t, "commands") {
				entry.Commands = append(entry.Commands, drawCommand(t, wall))
			}
		}
		log = append(log, logged{uint64(i + 1), term, AppendEntry(nil, entry)})
	}
	return log
}
