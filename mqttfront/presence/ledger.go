package presence

import "holdfast/mqttfront/broker"

const (
	// confirmAfter is how long after a client's end it is looked at again, in milliseconds: then no watch of the connection that has ended
	// is too young for the departure.
	confirmAfter = 2*int64(Slack/1e6) + 500
	// maxAbsent bounds the clients that are looked at again, and maxConnections those whose connections are told apart; beyond it the
	// next ones are not.
	maxAbsent      = 100_000
	maxConnections = 200_000
)

// ledger turns events into departures. Times are milliseconds of this node's steady clock. It belongs to one goroutine.
type ledger struct {
	gone gone
	// after is a time after which everything that comes now was processed by the broker.
	after       int64
	absent      map[string]int64 // when to look again at a client that has gone
	connections map[string]int64 // of clients that are connected
	started     int64            // when the broker did, about; 0 is unknown
}

func newLedger() *ledger {
	return &ledger{absent: map[string]int64{}, connections: map[string]int64{}}
}

// begin notes a session with the broker, before anything was subscribed in it. When it was not resumed, what happened before is unknown.
func (l *ledger) begin(now int64, resumed bool) {
	if resumed {
		return
	}
	l.after = now
	clear(l.absent)
	clear(l.connections)
}

// event takes note of what the broker tells.
func (l *ledger) event(e Event, now int64) {
	known := l.connections[e.ClientID]
	switch e.Kind {
	case Connected:
		delete(l.absent, e.ClientID)
		if e.Connection != 0 && (known != 0 || len(l.connections) < maxConnections) {
			l.connections[e.ClientID] = max(known, e.Connection)
		}
		if known != 0 && e.Connection <= known { // told twice, or late
			return
		}
		l.emit(e.ClientID, l.after)
	case Present:
		delete(l.absent, e.ClientID)
	case TakenOver:
		if e.Connection == 0 || e.Connection >= known { // else the new connection was told already, and ended it
			l.emit(e.ClientID, l.after)
		}
	case Disconnected:
		if e.Connection != 0 && e.Connection < known {
			return // of a connection before the one that there is
		}
		delete(l.connections, e.ClientID)
		l.emit(e.ClientID, l.after)
		if len(l.absent) < maxAbsent {
			l.absent[e.ClientID] = now + confirmAfter
		}
	case Started:
		l.brokerStarted(l.after - e.Ago.Milliseconds()) // it was told after that, and perhaps waited since
	}
}

// brokerStarted takes note of when the broker started, which it says again and again.
func (l *ledger) brokerStarted(at int64) {
	const imprecise = 5_000 // milliseconds
	if l.started == 0 || at > l.started+imprecise {
		l.gone(broker.Disconnect{Everyone: true, Time: at - int64(Slack/1e6)})
		l.started = at
	}
}

// marker takes note of a marker that came back: whoever had gone before it was sent, and was not seen to come back, was still away then.
func (l *ledger) marker(sent int64) {
	l.after = max(l.after, sent)
	for clientID, due := range l.absent {
		if due <= sent {
			delete(l.absent, clientID)
			l.emit(clientID, sent)
		}
	}
}

func (l *ledger) emit(clientID string, at int64) {
	l.gone(broker.Disconnect{ClientID: clientID, Time: at - int64(Slack/1e6)})
}
