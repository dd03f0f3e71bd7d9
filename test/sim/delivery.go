package sim

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"holdfast/fsm"
	"holdfast/mqttfront"
	"holdfast/test/history"
	"holdfast/test/sim/schedule"
)

// deliveries records what no client sees: when a write was applied, and when the broker got its
// reply.
type deliveries struct {
	mu      schedule.Mutex
	applied map[string]fsm.RequestID // the request that set a value, by that value
	// the entries of each request, in the order of the log
	entries map[fsm.RequestID][]entryOfRequest
	// when the broker had the first reply, by correlation data
	replied map[string]time.Duration
	ended   []ending // when processes ended
}

// indexAt is an index of the log, and when it was reached.
type indexAt struct {
	at    time.Duration
	index uint64
}

// entryOfRequest is an entry that executed or refused a request.
type entryOfRequest struct {
	indexAt
	// it refused the request because of overload, and did not repeat an earlier outcome
	refused bool
}

// mayBeUnanswered reports whether the leader need not answer the request after this entry. That is
// so if the entry is a refusal that was applied more than proposalAge after the request was sent:
// an earlier copy may have had an effect that the dedup table has forgotten.
func (e entryOfRequest) mayBeUnanswered(sent, proposalAge time.Duration) bool {
	return e.refused && e.at-sent > proposalAge
}

// ending is the end of a process.
type ending struct {
	at   time.Duration
	host string
}

// observer is a node's front end. It reports each applied entry to the simulation.
type observer struct {
	*mqttfront.Front
	host *host
	dead <-chan struct{} // closed when the process is killed
}

// Applied implements cluster.Observer.
func (o observer) Applied(outcome *fsm.EntryOutcome, tags []any) {
	select {
	case <-o.dead:
		// a killed process that is the only voter commits entries to a copy of its disk: they do
		// not count
	default:
		o.host.sim.deliveries.apply(outcome, o.host.sim.trace.now())
		o.host.sim.executions.apply(outcome, o.host.sim.trace.now())
	}
	o.Front.Applied(outcome, tags)
}

func (d *deliveries) apply(entry *fsm.EntryOutcome, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry.Skipped {
		return
	}
	for i := range entry.Commands {
		if entry.Results[i].Code == fsm.CodeNoReply {
			continue
		}
		d.executedOrRefused(&entry.Commands[i], &entry.Results[i], indexAt{now, entry.Index})
	}
}

// executedOrRefused records that an entry executed or refused a request. A request may have several
// entries: if the dedup table would forget its outcome too soon, the leader proposes a refusal of
// it as well, and answers after that entry.
func (d *deliveries) executedOrRefused(c *fsm.Command, result *fsm.Result, entry indexAt) {
	d.addEntry(c.ID, entryOfRequest{indexAt: entry})
	for i := range c.Rejected { // one at most: see fsm.Command.Refusal
		d.addEntry(c.Rejected[i].ID,
			entryOfRequest{indexAt: entry, refused: result.Error == fsm.ErrorOverloaded &&
				!result.Repeat})
	}
	d.setBy(c.ID, c)
	for i := range c.Operations {
		d.setBy(c.ID, &c.Operations[i])
	}
}

// addEntry records an entry with a request, once, although each replica applies it.
func (d *deliveries) addEntry(id fsm.RequestID, entry entryOfRequest) {
	entries := d.entries[id]
	if len(entries) == 0 || entries[len(entries)-1].index < entry.index {
		d.entries[id] = append(entries, entry)
	}
}

// lastEntry returns the last entry with a request among those that were applied by the time until.
// Its index is 0 if there is none.
func (d *deliveries) lastEntry(id fsm.RequestID, until time.Duration) (last entryOfRequest) {
	for _, entry := range d.entries[id] {
		if entry.at <= until {
			last = entry
		}
	}
	return last
}

// setBy notes which request a SET belongs to, by its value.
func (d *deliveries) setBy(id fsm.RequestID, c *fsm.Command) {
	if c.Kind == fsm.KindSet && len(c.Value) > 0 {
		d.applied[string(c.Value)] = id
	}
}

// publish records when the broker first got a reply. It ignores other messages that nodes publish.
func (d *deliveries) publish(topic string, correlation []byte, now time.Duration) {
	if !strings.HasSuffix(topic, "/invoke/response") {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.replied[string(correlation)]; !known {
		d.replied[string(correlation)] = now
	}
}

// end records that a host's process has ended.
func (d *deliveries) end(host string, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = append(d.ended, ending{now, host})
}

// served reports whether the client's publishing connection was in service between from and to: it
// answered at least three SETs by to that were sent at from or later. These go through the session,
// the log and the connection in order, also behind what a new leader is given again, so a reply to
// an earlier SET was not just late. A GET is read beside the log.
func (d *deliveries) served(ops []*history.Op, client string, publishers int, from,
	to time.Duration,
) bool {
	const some = 3
	answered := 0
	for _, o := range ops {
		if o.Verb != history.Set || o.Call < from || !share(o.Client, client, publishers) {
			continue
		}
		if replied, ever := d.replied[o.Correlation()]; ever && replied <= to {
			answered++
		}
	}
	return answered >= some
}

// share reports whether two clients have the same publishing connection, whether nodes go by the id
// in a request or by the one that the broker stamps.
func share(a, b string, publishers int) bool {
	return shard(a, publishers) == shard(b, publishers) &&
		shard(stampedID(a), publishers) == shard(stampedID(b), publishers)
}

// shard returns the number of the publishing connection of a client id (outbox.Connections).
func shard(client string, publishers int) uint32 {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(client)) // never fails
	return hash.Sum32() % uint32(publishers)
}

// endedHosts returns how many nodes ended between from and to.
func (d *deliveries) endedHosts(from, to time.Duration) int {
	hosts := make(map[string]bool)
	for _, e := range d.ended {
		if e.at >= from && e.at <= to {
			hosts[e.host] = true
		}
	}
	return len(hosts)
}

// checkDelivered checks that a SET is answered if it had an outcome in the log while its client
// still waited, and the cluster's session received its first publication. It may stay unanswered if
// more than one node ended meanwhile, or the broker lost the session. The check applies only if
// requests that were sent after the outcome were answered. If several entries have copies of the
// SET, the last one counts.
func (s *simulation) checkDelivered() {
	// time that a redelivery to the next leader may need to arrive and to be answered
	const late = 2 * time.Second
	if !s.roomForAll() || s.metric("holdfast_publish_abandoned_total", "reply") > 0 ||
		s.metric("holdfast_requests_dropped_total", "stuck") > 0 {
		return
	}
	d := &s.deliveries
	for _, o := range s.load.History.Ops {
		if o.Verb != history.Set || o.Anonymous || o.Value == "" ||
			strings.HasPrefix(o.Key, "lock/") {
			continue
		}
		id, applied := d.applied[o.Value]
		from, to := o.Call, o.Call+time.Duration(s.tunables.expiry)*time.Second
		last := d.lastEntry(id, to-late)
		replied, ever := d.replied[o.Correlation()]
		if !applied || last.index == 0 || ever && replied <= to ||
			!d.served(s.load.History.Ops, o.Client, s.tunables.front.PublishingConnections,
				last.at, to) {
			continue
		}
		if !slices.Contains(o.Sendings[0].Receivers, requestSession) ||
			last.mayBeUnanswered(from, s.tunables.front.ProposalAge) {
			continue
		}
		if d.endedHosts(from, to) > 1 || s.lost(from, to) {
			continue
		}
		s.violation("unanswered",
			"%s has an outcome at entry %d after %.6f s, but nobody answered", o, last.index,
			last.at.Seconds())
	}
}

// newDeliveries returns an empty record.
func newDeliveries() deliveries {
	return deliveries{
		applied: make(map[string]fsm.RequestID), entries: make(map[fsm.RequestID][]entryOfRequest),
		replied: make(map[string]time.Duration),
	}
}
