package fsm

import (
	"strings"
	"testing"
)

// A refusal says which limit was met.
func TestRefusalNamesItsLimit(t *testing.T) {
	limits := func(change func(*Limits)) func(*testLeader) {
		return func(l *testLeader) { l.configure(func(s *Settings) { change(&s.Limits) }) }
	}
	oversize := func(c *Command) { c.Oversize = true }
	for name, test := range map[string]struct {
		before func(*testLeader)
		make   func(*testLeader) Command
		want   Limit
		text   string
	}{
		"keys": {
			limits(func(l *Limits) { l.Keys = 1 }),
			func(l *testLeader) Command { return l.set("b", "1") }, LimitKeys, "limits.keys: 1",
		},
		"bytes": {
			limits(func(l *Limits) { l.TotalBytes = 5 }),
			func(l *testLeader) Command { return l.set("b", "1234") }, LimitTotalBytes,
			"limits.totalBytes: 5",
		},
		"keys of a client": {
			limits(func(l *Limits) { l.KeysPerClient = 1 }),
			func(l *testLeader) Command { return l.set("b", "1") }, LimitKeysPerClient,
			"limits.keysPerClient: 1",
		},
		"bytes of a client": {
			limits(func(l *Limits) { l.BytesPerClient = 3 }),
			func(l *testLeader) Command { return l.set("b", "1") }, LimitBytesPerClient,
			"limits.bytesPerClient: 3",
		},
		"key": {
			limits(func(l *Limits) { l.KeyBytes = 2 }),
			func(l *testLeader) Command { return l.set("bbb", "1") }, LimitKeyBytes,
			"limits.keyBytes: 2",
		},
		"value": {
			limits(func(l *Limits) { l.ValueBytes = 2 }),
			func(l *testLeader) Command { return l.set("b", "123") }, LimitValueBytes,
			"limits.valueBytes: 2",
		},
		"left out": {
			nil, func(l *testLeader) Command { return l.set("b", "", oversize) }, LimitSizes,
			"size",
		},
		"watches": {
			limits(func(l *Limits) { l.Watches = 1 }),
			func(*testLeader) Command { return watching("a", "w2") }, LimitWatches,
			"limits.watches: 1",
		},
		"watches of a client": {
			limits(func(l *Limits) { l.WatchesPerClient = 1 }),
			func(*testLeader) Command { return watching("a", "w2") }, LimitWatchesPerClient,
			"limits.watchesPerClient: 1",
		},
		"bytes of watches": {
			limits(func(l *Limits) { l.WatchBytes = 3 }),
			func(*testLeader) Command { return watching("a", "w2") }, LimitWatchBytes,
			"watch_bytes: 3",
		},
		"pattern": {
			nil,
			func(*testLeader) Command { return watchingPattern("a", strings.Repeat("x", 1025)) },
			LimitPatternBytes, "pattern_bytes: 1024",
		},
		"topic": {
			limits(func(l *Limits) { l.KeyBytes = 1 << 20 }),
			func(*testLeader) Command { return watching("a", strings.Repeat("x", 40_000)) },
			LimitTopic, "notification_topic: 65535",
		},
		"in a transaction": {
			limits(func(l *Limits) { l.Keys = 1 }),
			func(l *testLeader) Command { return l.txn(l.set("b", "1")) }, LimitKeys,
			"limits.keys: 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.do(l.set("a", "1"))
			l.do(watching("a", "w"))
			if test.before != nil {
				test.before(l)
			}
			got := l.do(test.make(l))
			l.want(name, got, CodeError, ErrorQuota)
			settings, _ := l.m.Settings()
			if text := got.Limit.Text(&settings.Limits); got.Limit != test.want ||
				text != test.text {
				t.Errorf("%s: %q", got.Limit.Name(), text)
			}
		})
	}
	for _, limit := range AllLimits() {
		if limit.Name() == "" || strings.ContainsAny(limit.Name(), " \"") {
			t.Errorf("limit %d is called %q", limit, limit.Name())
		}
	}
}
