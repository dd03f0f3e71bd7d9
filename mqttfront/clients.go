package mqttfront

import (
	"holdfast/fsm"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/pending"
	"holdfast/mqttfront/wire"
)

// What a leader does about clients by the broker's driver: it ends the watches of clients that disconnected, disconnects clients that misbehave,
// and subscribes clients to their notifications.

// DisconnectFeedErr returns why watches of clients that disconnect do not end now. It returns nil if they do, or if the broker has no driver.
func (f *Front) DisconnectFeedErr() error {
	return f.disconnects.Err(2 * (f.config.BackoffMax + f.config.ConnectTime))
}

// endWatches proposes the end of a client's watches, if it has any, or has requests under way that may make some.
func (f *Front) endWatches(d broker.Disconnect) {
	watches := d.Everyone
	if !watches {
		f.mu.Lock()
		watches = f.pending.Writes(d.ClientID) > 0
		f.mu.Unlock()
	}
	if !watches {
		f.store.View(func(m *fsm.Machine) { watches = m.Watches(d.ClientID) })
	}
	if !watches {
		f.world.Metrics.disconnects.WithLabelValues("no_watches").Inc()
		return
	}
	f.world.Metrics.disconnects.WithLabelValues("logged").Inc()
	f.propose(fsm.Command{Kind: fsm.KindClientGone, Principal: principal(d.ClientID), Everyone: d.Everyone, BrokerTime: d.Time})
}

// propose proposes a command that no request waits for.
func (f *Front) propose(command fsm.Command) {
	f.store.Propose(command, nil)
	f.store.Flush()
}

// kick disconnects the publisher of a request with an invalid response topic, if this node leads. It does not wait for that.
func (f *Front) kick(r *wire.Request) {
	if f.leads() {
		f.kicker.Kick(broker.Publisher{ClientID: r.Command.Principal.ClientID, Username: r.Command.Principal.Username})
	}
}

// subscribeLocked subscribes a client that watches a key to its notifications. It does not wait for that.
func (f *Front) subscribeLocked(r *pending.Request, result *fsm.Result) {
	if r.Command.Kind == fsm.KindKeyNotify && result.Code == fsm.CodeOK {
		f.subscribe(r.Command.Principal.ClientID, nil)
	}
}

// subscribe subscribes a client to its notifications, and returns false if the driver cannot do that. The command, if there is one, is proposed
// when no subscription was made. When the driver fails, the next notification without a subscriber tries again. The filter has a single-level wildcard
// for the key, as the protocol's Rust library subscribes.
func (f *Front) subscribe(clientID string, otherwise *fsm.Command) bool {
	wanted := broker.Subscription{ClientID: clientID, Filter: topics.OfClient(clientID) + "+"}
	if otherwise != nil {
		wanted.NotMade = func() { f.propose(*otherwise) }
	}
	return f.subscriber.Subscribe(wanted)
}
