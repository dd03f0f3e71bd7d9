package sim

import (
	"context"

	"holdfast/test/sim/schedule"
)

// A process may be stopped between any two instructions. Some code paths are too short for a random
// stop to hit them. A trap waits until a node enters such a path, and stops it a few
// synchronisation points later. Without the overlay (package schedule) nothing stops.

// traps are the traps that are set; nil is none. Each is for the next node that enters its code
// path.
type traps struct {
	mu       schedule.Mutex
	leading  *fault // stops the next node that begins to lead
	dialling *fault // stops the next leader that connects to the broker
	// delays one goroutine of the next node on which a proposal or a read fails; its others run on
	failing *fault
}

func (t *traps) set(f *fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch f.kind {
	case stoppedWhenElected:
		t.leading = f
	case stoppedWhenDialling:
		t.dialling = f
	case flapLeader:
		t.failing = f
	}
}

// endFlapping takes away the trap that flap has set last.
func (t *traps) endFlapping() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failing = nil
}

// remove removes a fault's trap, unless a later one of the same kind has replaced it. It reports
// whether a node entered the path of the fault's trap.
func (t *traps) remove(f *fault) (sprung bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch f {
	case t.leading:
		t.leading = nil
	case t.dialling:
		t.dialling = nil
	}
	return f.sprung
}

// stopLater springs the trap if one is set: the host's node stops when it has passed the trap's
// synchronisation points.
func (h *host) stopLater(trap **fault) {
	t := &h.sim.traps
	t.mu.Lock()
	f := *trap
	*trap = nil
	if f != nil {
		f.sprung = true
	}
	t.mu.Unlock()
	if f != nil {
		h.sim.trace.add("FAULT", "stops %s for %v in %d synchronisation points", h.name, f.delay,
			f.points)
		schedule.StopAfter(h.group, f.points, f.delay)
	}
}

// Serve implements cluster.Observer.
func (o observer) Serve(ctx context.Context, term uint64) error {
	o.host.stopLater(&o.host.sim.traps.leading)
	return o.Front.Serve(ctx, term)
}

// Failed implements cluster.Observer.
func (o observer) Failed(tag any, invalid bool) {
	t := &o.host.sim.traps
	t.mu.Lock()
	f := t.failing
	t.failing = nil
	t.mu.Unlock()
	o.Front.Failed(tag, invalid)
	if f != nil {
		schedule.DelayAfter(o.host.group, f.points, f.delay)
	}
}

// dialsBroker is called by a node that connects to the broker.
func (h *host) dialsBroker() {
	if node := h.member(); node != nil && node.Status().Role == "leader" {
		h.stopLater(&h.sim.traps.dialling)
	}
}

// trap sets a trap, and makes a node enter its code path: it transfers the leadership, or breaks
// the leader's connections to the broker. It reports whether a node entered the path.
func (s *simulation) trap(ctx context.Context, f *fault, leader *host) bool {
	s.traps.set(f)
	if f.kind == stoppedWhenDialling && f.variant%2 == 0 {
		s.network.reset(func(c *conn) bool {
			l := c.outgoing()
			return l.class == classBroker &&
				l.from == leader.name
		})
	} else if node := leader.member(); node != nil {
		s.succeeded("transfer", node.Membership().Transfer(ctx, ""))
	}
	s.sleep(f.lasts)
	return s.traps.remove(f)
}
