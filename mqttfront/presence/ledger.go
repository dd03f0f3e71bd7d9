package presence

import (
	"slices"

	"holdfast/mqttfront/broker"
)

const (
	// recheckAfter is the time in milliseconds after which a disconnect is reported again, if the
	// client has not reconnected. Watches are stamped Slack later and disconnects Slack earlier, so
	// the first report may miss the newest watches. The 500 ms are for requests that arrive after
	// the event.
	recheckAfter = 2*int64(Slack/1e6) + 500
	// maxRechecks bounds the disconnects that are reported again, and maxConnections the clients
	// whose current connection is known. Further clients are not tracked.
	maxRechecks    = 100_000
	maxConnections = 200_000
)

// ledger turns the broker's events into client disconnects. Times are milliseconds of Watcher.now.
// Methods must not be called concurrently: session.handling serializes them.
type ledger struct {
	report func(broker.Disconnect)
	// lower bound on when the broker processed the events that arrive now
	processedAfter int64
	// by client id: a marker sent at this time or later reports its disconnect again
	recheckAt   map[string]int64
	connections map[string]int64 // by client id: Event.Connection of its current connection
	started     int64            // estimated start of the broker; 0 is unknown
	uptime      int64            // of the broker in its latest event, in milliseconds
	seen        int64            // processedAfter at that event
}

func newLedger() *ledger {
	return &ledger{recheckAt: map[string]int64{}, connections: map[string]int64{}}
}

// begin starts a session. now is a time before the CONNECT. If the session was not resumed, events
// were lost, and the ledger forgets all clients.
func (l *ledger) begin(now int64, resumed bool) {
	if resumed {
		return
	}
	l.processedAfter = now
	clear(l.recheckAt)
	clear(l.connections)
}

// event handles an event of the broker.
func (l *ledger) event(e Event, now int64) {
	known := l.connections[e.ClientID]
	switch e.Kind {
	case Connected:
		delete(l.recheckAt, e.ClientID)
		if e.Connection != 0 && (known != 0 || len(l.connections) < maxConnections) {
			l.connections[e.ClientID] = max(known, e.Connection)
		}
		if known != 0 && e.Connection <= known { // a duplicate, or out of order
			return
		}
		l.emit(e.ClientID, l.processedAfter) // a new connection ends the earlier one
	case Present:
		delete(l.recheckAt, e.ClientID)
	case TakenOver:
		if e.Connection != 0 && e.Connection < known {
			return // the Connected event of the newer connection has reported this already
		}
		// The current connection ended. The number of the one that took over may be lower: the
		// clocks of broker nodes differ, and may be set back.
		delete(l.connections, e.ClientID)
		l.emit(e.ClientID, l.processedAfter)
	case Disconnected:
		if e.Connection != 0 && e.Connection < known {
			return // an earlier connection than the current one
		}
		delete(l.connections, e.ClientID)
		l.emit(e.ClientID, l.processedAfter)
		if len(l.recheckAt) < maxRechecks {
			l.recheckAt[e.ClientID] = now + recheckAfter
		}
	case Uptime:
		l.handleUptime(e.Ago.Milliseconds())
	}
}

// handleUptime handles the uptime of the broker, in milliseconds by its own clock, which it
// publishes repeatedly. The first known start of the broker, and each later one, ends the
// connections of all clients.
//
// The broker's clock may stand still or run slower than this node's, and then the estimated start
// moves. That is no restart if the broker was seen running after the new estimate. The reported
// time is earlier by as much as the two clocks may differ.
func (l *ledger) handleUptime(uptime int64) {
	const (
		tolerance = 5_000 // milliseconds
		drift     = 1000  // the rates of the two clocks differ by at most 1/drift
	)
	// the uptime was published after processedAfter; now may be much later, because the event may
	// have been queued
	at := l.processedAfter - uptime
	restarted := uptime < l.uptime || at > l.started+tolerance && at > l.seen-tolerance
	if l.started == 0 || restarted {
		l.report(broker.Disconnect{Everyone: true, Time: at - int64(Slack/1e6) - uptime/drift})
		l.started = at
	}
	l.uptime, l.seen = uptime, l.processedAfter
}

// marker handles a marker that returned. The events of one broker node keep their order: a client
// that disconnected, and whose reconnect has not arrived, was not connected when the marker was
// sent. Its disconnect is reported again with that time.
func (l *ledger) marker(sent int64) {
	l.processedAfter = max(l.processedAfter, sent)
	var due []string
	for clientID, at := range l.recheckAt {
		if at <= sent {
			due = append(due, clientID)
		}
	}
	slices.Sort(due) // the order of a map must not decide that of the log
	for _, clientID := range due {
		delete(l.recheckAt, clientID)
		l.emit(clientID, sent)
	}
}

// emit reports the disconnect of a client, Slack before a time.
func (l *ledger) emit(clientID string, at int64) {
	l.report(broker.Disconnect{ClientID: clientID, Time: at - int64(Slack/1e6)})
}
