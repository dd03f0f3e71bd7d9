package sim

import (
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/topics"
	"holdfast/test/sim/schedule"
	"holdfast/test/workload"
)

// client is a simulated MQTT client: it carries the messages of a workload.Client, which uses the
// store.
type client struct {
	*workload.Client
	sim        *simulation
	persistent bool // the broker keeps its session while it is away
	out        chan outgoing
	wantsUp    gate // closed while the client is to be disconnected

	mu       schedule.Mutex
	attached *attachment
}

// outgoing is a publication, and the connection on which the client sends it.
type outgoing struct {
	attachment  *attachment
	publication *workload.Publication
}

func newClient(s *simulation, id string, persistent bool) *client {
	c := &client{sim: s, persistent: persistent, out: make(chan outgoing, 4096)}
	c.Client = s.load.Hire(id, c.publish)
	s.load.Go(c.stayConnected)
	s.load.Go(c.uplink)
	return c
}

// publish gives a publication to the goroutine that runs uplink.
func (c *client) publish(p *workload.Publication) {
	select {
	case c.out <- outgoing{c.connection(), p}:
	default: // lost, as with a client that is short of memory
	}
}

// stayConnected keeps the client connected, and receives.
func (c *client) stayConnected() {
	const pause = 200 * time.Millisecond
	for again := false; !c.sim.load.Ended(); {
		if opened := c.wantsUp.whenOpen(); opened != nil {
			select {
			case <-opened:
			case <-c.sim.load.Done():
			}
			continue
		}
		expiry := time.Duration(0)
		if c.persistent {
			expiry = time.Hour
		}
		a, present, err := c.sim.broker.attach(c.ID, !c.persistent, expiry, 65535)
		if err != nil {
			c.sim.sleep(pause)
			continue
		}
		c.sim.broker.subscribe(a, c.ResponseTopic())
		c.sim.broker.subscribe(a, c.NotifyFilter())
		if !present && again {
			c.MissedNotes()
		}
		again = true
		c.setAttached(a)
		c.receive(a)
		c.setAttached(nil)
		c.sim.broker.detach(a)
		if !c.persistent {
			c.MissedNotes()
		}
	}
}

func (c *client) setAttached(a *attachment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached = a
}

func (c *client) connection() *attachment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached
}

// disconnect ends the client's connection for a time.
func (c *client) disconnect(d time.Duration) {
	c.wantsUp.close()
	defer c.wantsUp.open()
	if a := c.connection(); a != nil {
		c.sim.broker.detach(a)
	}
	c.sim.sleep(d)
}

// receive takes what the broker delivers until the connection ends.
func (c *client) receive(a *attachment) {
	for {
		select {
		case <-a.gone:
			return
		case <-c.sim.load.Done():
			return
		case <-a.wake:
		}
		c.reach()
		deliveries := c.sim.broker.next(a)
		for _, d := range deliveries {
			c.Receive(d.message.topic, d.message.payload, d.message.properties)
		}
		c.reach() // a client that is disconnected here gets them again
		for _, d := range deliveries {
			c.sim.broker.acknowledge(a, d.id)
		}
	}
}

// reach waits as long as a message takes to the broker, or from it: first until the broker is not
// silent (a fault), and then for the network's latency.
func (c *client) reach() {
	for opened := c.sim.network.host("broker").running.whenOpen(); opened != nil &&
		!c.sim.load.Ended(); opened = c.sim.network.host("broker").running.whenOpen() {
		select {
		case <-opened:
		case <-c.sim.load.Done():
		}
	}
	c.sim.sleep(c.sim.tunables.latency)
}

// uplink publishes what the client sends, in order. What was not published when the connection ends
// is lost.
func (c *client) uplink() {
	for {
		select {
		case <-c.sim.load.Done():
			return
		case o := <-c.out:
			c.reach()
			if o.attachment == nil || o.attachment != c.connection() {
				continue
			}
			m := message{
				topic: topics.Invoke, payload: o.publication.Payload,
				properties: c.stamp(o.publication.Properties),
			}
			if m.properties.MessageExpiry != nil {
				m.expires = time.Now().Add(time.Duration(*m.properties.MessageExpiry) * time.Second)
			}
			receivers, err := c.sim.broker.publish(&m)
			if err != nil {
				continue
			}
			o.publication.Reached(receivers)
		}
	}
}

// stampProperty is the user property by which the broker says who published.
const stampProperty = "mqtt-client"

// stamp adds the client id that the broker vouches for to the properties of a publication. For some
// clients this id differs from the __srcId in their requests. For a client that watches keys both
// must be the same: the topic of its notifications has the id.
func (c *client) stamp(properties *packets.Properties) *packets.Properties {
	stamped := *properties
	stamped.User = append(slices.Clone(properties.User),
		packets.User{Key: stampProperty, Value: stampedID(c.ID)})
	return &stamped
}

// stampedID returns the id that the broker vouches for, of the client with an id.
func stampedID(id string) string {
	for _, family := range []string{"register", "locker", "expirer", "writer", "flooder"} {
		if strings.HasPrefix(id, family) {
			return "session-of-" + id
		}
	}
	return id
}
