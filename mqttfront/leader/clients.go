package leader

import (
	"context"
	"sync"

	"holdfast/fsm"
	"holdfast/internal/policy"
	"holdfast/internal/topics"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/wire"
)

// Clients acts on MQTT clients for a leader, through the broker's driver. It ends the watches of
// clients that disconnected, disconnects clients that misbehave, and subscribes clients to their
// notifications. All methods are safe for concurrent use.
type Clients struct {
	mayWatch   func(clientID string) bool // see Dispatcher.mayWatch
	propose    func(fsm.Command)          // proposes a command that no request waits for
	count      func(result string)        // counts a client disconnect
	kicker     *broker.Kicker
	subscriber *broker.Subscriber
}

// Run makes the queued calls of the driver until the context ends.
func (c *Clients) Run(ctx context.Context) {
	var calling sync.WaitGroup
	calling.Go(func() { c.kicker.Run(ctx) })
	calling.Go(func() { c.subscriber.Run(ctx) })
	calling.Wait()
}

// EndWatches proposes the end of a client's watches, if it has any, or has requests under way that
// may make some.
func (c *Clients) EndWatches(d broker.Disconnect) {
	if !d.Everyone && !c.mayWatch(d.ClientID) {
		c.count("no_watches")
		return
	}
	c.count("logged")
	c.propose(fsm.Command{
		Kind: fsm.KindClientGone, Principal: principal(d.ClientID),
		Everyone: d.Everyone, BrokerTime: d.Time,
	})
}

// Kick disconnects the publisher of a request with an invalid response topic, or of a request whose
// reply was abandoned (publish.Handler). It does not wait until the publisher is disconnected. It
// is called only while this node leads.
func (c *Clients) Kick(r *wire.Request) {
	c.kicker.Kick(broker.Publisher{
		ClientID: r.Command.Principal.ClientID,
		Username: r.Command.Principal.Username,
	})
}

// subscribe queues the subscription of a client to its notifications. It returns false, and does
// nothing, if the driver cannot subscribe clients. The command ifNotMade is proposed if the client
// has a subscription already, if the broker does not know the client, or if the broker has no way
// to subscribe it. It may be nil. If the driver fails, or its queue is full, nothing is proposed:
// the next notification without a subscriber tries again. The filter has a single-level wildcard
// for the key, as the protocol's Rust library subscribes.
func (c *Clients) subscribe(clientID string, ifNotMade *fsm.Command) bool {
	wanted := broker.Subscription{ClientID: clientID, Filter: topics.NotificationPrefix(clientID) +
		"+"}
	if ifNotMade != nil {
		wanted.NotMade = func() { c.propose(*ifNotMade) }
	}
	return c.subscriber.Subscribe(wanted)
}

func principal(clientID string) (p policy.Principal) {
	p.ClientID = clientID
	return p
}
