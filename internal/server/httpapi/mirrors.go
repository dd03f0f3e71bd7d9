package httpapi

import (
	"net/http"

	"holdfast/cluster/peer"
	"holdfast/fsm"
	"holdfast/mqttfront/mirror"
)

// Mirrors has the mirrors in force, and what the leader does for them. A mirror publishes the keys
// of a pattern as retained messages.
type Mirrors struct {
	Mirrors []Mirror `json:"mirrors"`
	// InSync says that the broker retains all that it should, as far as the node knows: no
	// comparison is incomplete, no topic is refused or unretained, and every change that is older
	// than a second is acknowledged.
	InSync    bool `json:"inSync"`
	Connected bool `json:"connected"`
	// the retained messages are being compared with the state, or will be
	Comparing bool `json:"comparing"`
	Keys      int  `json:"keys"` // number of keys that had a mirror at the last comparison
	// number of these keys that are not published, because they make no valid topic
	Unshown int `json:"unshown"`
	// retained messages that the broker lacked, since the last resync
	Missing int `json:"missing"`
	// retained messages that differed from the state, or had no key, since the last resync
	Stale int  `json:"stale"`
	Blind bool `json:"blind"` // the broker does not send what it retains below some mirror
	// the broker dropped some of its retained messages at the last comparison, because its queue
	// was full
	Dropped bool `json:"dropped"`
	// Unretained is the number of topics whose message the broker has acknowledged but does not
	// retain.
	Unretained int `json:"unretained"`
	// number of topics whose retained message may differ from the state
	LagTopics int `json:"lagTopics"`
	// number of topics whose message the broker refuses, or for which it ends the connection
	Refused int `json:"refused"`
	// milliseconds: age of the oldest change that the broker has not acknowledged, see
	// mirror.Status.Lag
	Lag   int64  `json:"lag"`
	Fault string `json:"fault"` // why there is no connection, or no comparison
}

// Mirror is one element of the setting "mirrors".
type Mirror struct {
	Keys  string `json:"keys"`  // pattern
	Topic string `json:"topic"` // prefix of the topics
}

// MirrorPublisher publishes the mirrors while its node leads.
type MirrorPublisher interface {
	Status() mirror.Status
	// Resync starts a comparison of the retained messages with the state, and does not wait for it.
	// It does nothing and returns false on a node that does not lead.
	Resync() bool
}

func (a *admin) mirrors(w http.ResponseWriter, r *http.Request) error {
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	status := a.Mirrors.Status()
	if !status.Leading {
		return peer.ErrNotLeader
	}
	return writeJSON(w, a.mirrorsAs(status))
}

// mirrorsAs returns the mirrors in force with a publisher's status. The status of a node that does
// not lead is empty.
func (a *admin) mirrorsAs(s mirror.Status) Mirrors {
	var settings fsm.Settings
	a.Node.View(func(m *fsm.Machine) { settings, _ = m.Settings() })
	answer := Mirrors{
		Mirrors: []Mirror{}, InSync: len(settings.Mirrors) == 0 || s.InSync,
		Connected: s.Connected, Comparing: s.Comparing, Keys: s.Keys, Unshown: s.Unshown,
		Missing: s.Missing, Stale: s.Stale, Blind: s.Blind, Dropped: s.Dropped,
		Unretained: s.Unretained, LagTopics: s.Topics, Refused: s.Refused,
		Lag: s.Lag.Milliseconds(), Fault: s.Fault,
	}
	for _, one := range settings.Mirrors {
		answer.Mirrors = append(answer.Mirrors, Mirror{one.Keys, one.Topic})
	}
	return answer
}

func (a *admin) resyncMirrors(w http.ResponseWriter, r *http.Request) error {
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	if !a.Mirrors.Resync() {
		return peer.ErrNotLeader
	}
	return writeJSON(w, Done{true})
}
