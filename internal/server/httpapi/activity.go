package httpapi

import (
	"net/http"

	dto "github.com/prometheus/client_model/go"

	"holdfast/fsm"
)

// Activity is what a node has done since it started, from its metrics. The differences between two
// answers give rates and latencies.
type Activity struct {
	Node    string   `json:"node"`
	State   string   `json:"state"` // leader, follower, candidate or shutdown
	Serving bool     `json:"serving"`
	Ready   string   `json:"ready"` // "ok", or what is wrong
	Notes   []string `json:"notes"`
	Term    uint64   `json:"term"`
	// milliseconds by which this node's wall clock is ahead of the cluster clock
	ClockOffset     int64 `json:"clockOffset"`
	BrokerConnected bool  `json:"brokerConnected"`
	// number of times that the session with the broker was lost
	BrokerLosses uint64 `json:"brokerLosses"`
	// number of changes of the leader that this node has seen
	LeaderChanges uint64    `json:"leaderChanges"`
	Requests      []Counter `json:"requests"` // answered requests by command
	// of requests by stage (queue, commit, publish), and of probes (messages to itself through the
	// broker)
	Times   []Histogram `json:"times"`
	Keys    int         `json:"keys"`
	Bytes   int64       `json:"bytes"` // of keys and values
	Watches int         `json:"watches"`
}

// Counter is a number that grows.
type Counter struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// Histogram counts durations by their length.
type Histogram struct {
	Name    string   `json:"name"`
	Count   uint64   `json:"count"`
	Buckets []Bucket `json:"buckets"`
}

// Bucket counts the durations that are not longer than Micros microseconds, including those of the
// smaller buckets.
type Bucket struct {
	Micros int64  `json:"micros"`
	Count  uint64 `json:"count"`
}

func (a *admin) activity(w http.ResponseWriter, _ *http.Request) error {
	activity, err := a.ownActivity()
	if err != nil {
		return err
	}
	return writeJSON(w, activity)
}

// ownActivity returns what this node has done.
func (a *admin) ownActivity() (*Activity, error) {
	families, err := a.Metrics.Gather()
	if err != nil {
		return nil, err
	}
	status := a.Node.Status()
	offset, _ := a.Node.ClockOffset() // the error says that it is too large, and is among the notes
	answer := &Activity{
		Node: a.Name, State: status.Role, Serving: status.Serving, Ready: "ok",
		Notes: append([]string{}, a.Notes()...), Term: status.Term,
		ClockOffset: offset.Milliseconds(), Requests: []Counter{}, Times: []Histogram{},
		Keys: status.State.Keys, Bytes: status.State.Bytes, Watches: status.State.Watches,
	}
	if err := a.Ready(); err != nil {
		answer.Ready = err.Error()
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			answer.add(family.GetName(), metric)
		}
	}
	return answer, nil
}

// add adds the value of a metric, if it is one that Activity shows.
func (a *Activity) add(name string, metric *dto.Metric) {
	label := ""
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == "command" || pair.GetName() == "stage" {
			label = pair.GetValue()
		}
	}
	switch name {
	case "holdfast_session_connected":
		a.BrokerConnected = metric.GetGauge().GetValue() > 0
	case "holdfast_session_losses_total":
		a.BrokerLosses = uint64(metric.GetCounter().GetValue())
	case "holdfast_leader_changes_total":
		a.LeaderChanges = uint64(metric.GetCounter().GetValue())
	case "holdfast_requests_total":
		// a series for each outcome; those of a command follow each other
		count := uint64(metric.GetCounter().GetValue())
		if last := len(a.Requests) - 1; last >= 0 && a.Requests[last].Name == label {
			a.Requests[last].Count += count
		} else {
			a.Requests = append(a.Requests, Counter{label, count})
		}
	case "holdfast_request_seconds":
		a.Times = append(a.Times, histogram(label, metric.GetHistogram()))
	case "holdfast_broker_probe_seconds":
		a.Times = append(a.Times, histogram("probe", metric.GetHistogram()))
	}
}

func histogram(name string, from *dto.Histogram) Histogram {
	h := Histogram{Name: name, Count: from.GetSampleCount(), Buckets: []Bucket{}}
	for _, bucket := range from.GetBucket() {
		h.Buckets = append(h.Buckets,
			Bucket{int64(bucket.GetUpperBound() * 1e6), bucket.GetCumulativeCount()})
	}
	return h
}

// Overview is what the leader knows of keys and watches, as much as fits into one answer.
type Overview struct {
	Keys []Key `json:"keys"`
	// Locks are keys that expire and hold a short value, as a lock holds the name of its holder.
	// They are ordered by deadline, the earliest first.
	Locks   []Key   `json:"locks"`
	Watches []Watch `json:"watches"`
	More    bool    `json:"more"`    // there may be keys, locks or watches that are left out
	Mirrors Mirrors `json:"mirrors"` // the mirrors, and whether the broker retains their messages
}

const (
	overviewSize = 200 // the most keys, the most locks, and the most watches
	// overviewBytes bounds, roughly, the bytes of keys and client ids. overviewWatchers bounds the
	// watchers that are listed with a key.
	overviewBytes    = 256 << 10
	overviewWatchers = 10
	// expiringSize bounds the keys with a deadline that are examined to find locks.
	expiringSize = 10_000
	// holderSize is the size in bytes of the longest value that is shown as a lock's holder.
	holderSize = 256
)

func (a *admin) overview(w http.ResponseWriter, r *http.Request) error {
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	return writeJSON(w, a.overviewOf(r.URL.Query().Get("prefix")))
}

func (a *admin) overviewOf(prefix string) *Overview {
	answer := &Overview{
		Keys: []Key{}, Locks: []Key{}, Watches: []Watch{},
		Mirrors: a.mirrorsAs(a.Mirrors.Status()),
	}
	room := overviewBytes
	// takeRoom shortens a long list of watchers, subtracts the size of the key from room, and
	// reports whether the key fits.
	takeRoom := func(key *Key) bool {
		if len(key.Watchers) > overviewWatchers {
			key.Watchers = append(key.Watchers[:overviewWatchers:overviewWatchers], "…")
		}
		for _, watcher := range key.Watchers {
			room -= len(watcher)
		}
		room -= 2 * len(key.Key.Base64)
		return room > 0
	}
	a.Node.View(func(m *fsm.Machine) {
		keys := m.ListKeys(prefix, "", overviewSize)
		for i := range keys {
			if key := toKey(&keys[i]); takeRoom(&key) {
				answer.Keys = append(answer.Keys, key)
			}
		}
		expiring, all := m.ListExpiring(prefix, overviewSize, expiringSize)
		for i := range expiring {
			if len(expiring[i].Value) <= holderSize {
				value := toBytes(expiring[i].Value)
				lock := toKey(&expiring[i])
				lock.Value = &value
				if takeRoom(&lock) {
					answer.Locks = append(answer.Locks, lock)
				}
			}
		}
		watches := m.ListWatches(prefix, "", fsm.WatchInfo{}, overviewSize)
		for i := range watches {
			if room -= 2*len(watches[i].Key) + len(watches[i].ClientID); room > 0 {
				answer.Watches = append(answer.Watches, toWatch(&watches[i]))
			}
		}
		answer.More = len(keys) == overviewSize || len(watches) == overviewSize || !all || room <= 0
	})
	return answer
}
