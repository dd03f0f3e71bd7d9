package role

import (
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront/pending"
)

// nonLeader returns the role of a node that does not lead.
func nonLeader(t *tracker) role {
	if t.config.IngestAtLeader {
		return standby{t}
	}
	return follower{t}
}

// standby is the role of a node that does not lead, with ingestAtLeader: the broker keeps the requests. The node holds none and acknowledges none.
type standby struct{ *tracker }

func (standby) leads() bool { return false }

func (standby) hasRoom(*pending.Request) bool { return true }

// admit leaves the request to the broker, which delivers it to the next leader. A stale one is counted, as where nodes hold requests.
func (s standby) admit(r *pending.Request, _ dedupResult) {
	if s.stale.has(r) {
		s.metrics.HeldDropped.WithLabelValues("stale").Inc()
	}
}

func (standby) coalescingDelay() time.Duration { return followerDelay }

func (standby) changed(*fsm.Event) {}

func (s standby) committed(r *pending.Request, _ *fsm.Outcome, _ int) {
	s.requeueMaybeAppliedLocked(r, s)
}

func (standby) applied(*fsm.Outcome) {}

func (s standby) readDone(r *pending.Request, _ *fsm.Result) { s.requeueLocked(r, s) }

// requeued drops the request: it was not acknowledged, so the broker delivers it to the next leader.
func (s standby) requeued(r *pending.Request) {
	s.pending.EndWrite(r)
	s.releaseLocked(r)
}

func (standby) expects() bool { return false }

func (standby) reported(fsm.RequestID, time.Time) {} // it concerns held requests alone
