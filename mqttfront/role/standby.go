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

func (standby) leadsLocked() bool { return false }

func (standby) hasRoomLocked(*pending.Request) bool { return true }

// admitLocked leaves the request to the broker, which delivers it to the next leader. It counts a stale request, as follower.admitLocked does.
func (s standby) admitLocked(r *pending.Request, _ dedupResult) {
	if s.stale.has(r) {
		s.metrics.HeldDropped.WithLabelValues("stale").Inc()
	}
}

func (standby) coalescingDelayLocked() time.Duration { return followerDelay }

func (standby) changedLocked(*fsm.Event) {}

func (s standby) committedLocked(r *pending.Request, _ *fsm.EntryOutcome, _ int) {
	requeueMaybeAppliedLocked(s.tracker, s, r)
}

func (standby) appliedLocked(*fsm.EntryOutcome) {}

func (s standby) readDoneLocked(r *pending.Request, _ *fsm.Result) { requeueLocked(s.tracker, s, r) }

// requeuedLocked drops the request: it was not acknowledged, so the broker delivers it to the next leader.
func (s standby) requeuedLocked(r *pending.Request) {
	s.pending.EndProposal(r)
	s.releaseLocked(r)
}

func (standby) expectsCopiesLocked() bool { return false }

func (standby) reportedLocked(fsm.RequestID, time.Time) {} // a report is about held requests, and a standby holds none
