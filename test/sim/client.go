package sim

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/hlc"
	"holdfast/mqttfront"
	"holdfast/resp"
)

// client is a simulated MQTT client of the store. Its methods that send are for one goroutine, its workload's.
type client struct {
	sim        *simulation
	id         string
	persistent bool // the broker keeps its session while it is away
	random     *rand.Rand
	out        chan outgoing
	wantsUp    gate // closed while it is to be away

	mu       sync.Mutex
	attached *attachment
	pending  map[string]*request // by correlation data
	clock    hlc.Clock
	counter  int
}

// request is an operation that waits for its reply.
type request struct {
	op      *op
	message message
	done    chan struct{} // closed at the first reply
}

type outgoing struct {
	attachment *attachment
	request    *request
	copy       int // index in op.copies
}

func newClient(s *simulation, id string, persistent bool) *client {
	seed := uint64(0)
	for _, b := range []byte(id) {
		seed = seed*31 + uint64(b)
	}
	c := &client{
		sim: s, id: id, persistent: persistent, random: rand.New(rand.NewPCG(s.seed, seed)),
		out: make(chan outgoing, 4096), pending: make(map[string]*request),
	}
	s.work.Go(c.stayConnected)
	s.work.Go(c.uplink)
	return c
}

func (c *client) responseTopic() string {
	return "clients/" + c.id + "/services/statestore/_any_/command/invoke/response"
}

const notifyPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/"

// stayConnected keeps the client connected, and receives.
func (c *client) stayConnected() {
	const pause = 200 * time.Millisecond
	for again := false; !c.sim.ended(); {
		if opened := c.wantsUp.wait(); opened != nil {
			select {
			case <-opened:
			case <-c.sim.end:
			}
			continue
		}
		expiry := time.Duration(0)
		if c.persistent {
			expiry = time.Hour
		}
		a, present, err := c.sim.broker.attach(c.id, !c.persistent, expiry, 65535)
		if err != nil {
			c.sim.sleep(pause)
			continue
		}
		c.sim.broker.subscribe(a, c.responseTopic())
		c.sim.broker.subscribe(a, notifyPrefix+strings.ToUpper(hex.EncodeToString([]byte(c.id)))+"/command/notify/+")
		if !present && again {
			c.sim.history.addGap(c.id, c.sim.trace.now())
		}
		again = true
		c.setAttached(a)
		c.receive(a)
		c.setAttached(nil)
		c.sim.broker.detach(a)
		if !c.persistent {
			c.sim.history.addGap(c.id, c.sim.trace.now())
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
		case <-c.sim.end:
			return
		case <-a.wake:
		}
		c.reach()
		deliveries := c.sim.broker.next(a)
		for _, d := range deliveries {
			c.take(d.message)
		}
		c.reach() // whoever is disconnected here gets them again
		for _, d := range deliveries {
			c.sim.broker.acknowledge(a, d.id)
		}
	}
}

// reach is the way to the broker, or back. It lasts for as long as the broker is silent.
func (c *client) reach() {
	for opened := c.sim.network.host("broker").wait(); opened != nil && !c.sim.ended(); opened = c.sim.network.host("broker").wait() {
		select {
		case <-opened:
		case <-c.sim.end:
		}
	}
	c.sim.sleep(c.sim.tunables.latency)
}

// take looks at one message.
func (c *client) take(m *message) {
	version := hlc.Timestamp{}
	for _, user := range m.properties.User {
		if user.Key == "__ts" {
			version, _ = hlc.Parse(user.Value) // what cannot be read is none
		}
	}
	if ahead := version.Wall - time.Now().UnixMilli(); ahead > 60_000 && !c.sim.tunables.clockWild {
		c.sim.violation("version ahead", "%s got %s, which is %d ms ahead of the world", c.id, version, ahead)
	}
	if rest, ok := strings.CutPrefix(m.topic, notifyPrefix); ok {
		c.takeNote(rest, m, version)
		return
	}
	reply, err := resp.ReadReply(m.payload)
	if err != nil {
		c.sim.history.addOdd("%s got a reply that cannot be read: %q", c.id, m.payload)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.pending[string(m.properties.CorrelationData)]
	if r == nil {
		return // long given up
	}
	now := c.sim.trace.now()
	reply.Bulk = append([]byte(nil), reply.Bulk...)
	if r.op.known {
		r.op.again = append(r.op.again, repeat{now, reply, string(m.payload), version})
		return
	}
	r.op.known, r.op.replied, r.op.reply, r.op.payload, r.op.version = true, now, reply, string(m.payload), version
	r.op.notesAt = c.sim.history.noteCount(c.id)
	if !version.IsZero() {
		c.clock.AtLeast(version)
	}
	close(r.done)
	c.sim.ops.Add(1)
}

func (c *client) takeNote(rest string, m *message, version hlc.Timestamp) {
	parts := strings.Split(rest, "/")
	notification, err := resp.ReadNotification(m.payload)
	key, keyErr := hex.DecodeString(parts[len(parts)-1])
	if err != nil || keyErr != nil {
		c.sim.history.addOdd("%s got a notification that cannot be read: %s %q", c.id, m.topic, m.payload)
		return
	}
	c.sim.history.addNote(c.id, note{c.sim.trace.now(), string(key), notification.Deleted, string(notification.Value), version})
}

// uplink publishes what the client sends, in order. What was not published when the connection ends is lost.
func (c *client) uplink() {
	for {
		select {
		case <-c.sim.end:
			return
		case o := <-c.out:
			c.reach()
			if o.attachment == nil || o.attachment != c.connection() {
				continue
			}
			m := o.request.message
			m.expires = time.Time{}
			if m.properties.MessageExpiry != nil {
				m.expires = time.Now().Add(time.Duration(*m.properties.MessageExpiry) * time.Second)
			}
			receivers, err := c.sim.broker.publish(&m)
			if err != nil {
				continue
			}
			c.mu.Lock()
			o.request.op.copies[o.copy].receivers = append([]string{}, receivers...)
			c.mu.Unlock()
		}
	}
}

// begin sends an operation for the first time.
func (c *client) begin(o op) *request {
	c.mu.Lock()
	c.counter++
	o.client, o.sequence, o.call = c.id, c.counter, c.sim.trace.now()
	ts := c.clock.Now(time.Now().UnixMilli()).Timestamp(c.id)
	c.mu.Unlock()
	recorded := &o
	c.sim.history.add(recorded)
	size := 16
	if o.anonymous {
		size = 8
	}
	correlation := fmt.Sprintf("%0*d", size, recorded.number)
	properties := &packets.Properties{
		ResponseTopic: c.responseTopic(), CorrelationData: []byte(correlation),
		User: []packets.User{{Key: "__ts", Value: ts.String()}, {Key: "__srcId", Value: c.id}, {Key: "__protVer", Value: "1.0"}},
	}
	if !o.noExpiry {
		expiry := uint32(c.sim.tunables.expiry)
		properties.MessageExpiry = &expiry
	}
	if !o.token.IsZero() {
		properties.User = append(properties.User, packets.User{Key: "__ft", Value: o.token.String()})
	}
	r := &request{
		op: recorded, done: make(chan struct{}),
		message: message{topic: mqttfront.InvokeTopic, payload: resp.AppendArray(nil, o.arguments()...), properties: properties},
	}
	c.mu.Lock()
	c.pending[correlation] = r
	c.mu.Unlock()
	c.send(r)
	return r
}

// send publishes a request, or a copy of it.
func (c *client) send(r *request) {
	c.mu.Lock()
	r.op.copies = append(r.op.copies, sending{at: c.sim.trace.now()})
	o := outgoing{c.attached, r, len(r.op.copies) - 1}
	c.mu.Unlock()
	select {
	case c.out <- o:
	default: // lost, as with a client that is short of memory
	}
}

// arguments returns the operation as the store reads it.
func (o *op) arguments() []string {
	switch o.verb {
	case opSet:
		arguments := []string{"SET", o.key, o.value}
		if o.condition != always {
			arguments = append(arguments, string(o.condition))
		}
		if o.expected != "" {
			arguments = append(arguments, o.expected)
		}
		if o.ttl > 0 {
			arguments = append(arguments, "PX", strconv.FormatInt(o.ttl.Milliseconds(), 10))
		}
		return arguments
	case opVDel:
		return []string{"VDEL", o.key, o.value}
	case opStop:
		return []string{"KEYNOTIFY", o.key, "STOP"}
	default:
		return []string{string(o.verb), o.key}
	}
}

// await waits for the reply, and sends copies meanwhile, and sometimes afterwards. It returns whether there was one.
func (c *client) await(r *request) bool {
	expiry := time.Duration(c.sim.tunables.expiry) * time.Second
	if r.op.noExpiry {
		expiry = c.sim.tunables.front.DefaultExpiry
	}
	given := time.NewTimer(r.op.call + expiry + time.Second - c.sim.trace.now())
	defer given.Stop()
	copies := 0
	if !r.op.anonymous {
		copies = c.random.IntN(3)
	}
	again := time.NewTimer(between(c.random, 300*time.Millisecond, 2*time.Second))
	defer again.Stop()
	for {
		select {
		case <-r.done:
			if !r.op.anonymous && c.random.IntN(6) == 0 {
				c.sendLater(r)
			}
			return true
		case <-given.C:
			return false
		case <-c.sim.end:
			return false
		case <-again.C:
			if copies > 0 && c.sim.trace.now()-r.op.call < expiry/2 {
				copies--
				c.send(r)
				again.Reset(between(c.random, 300*time.Millisecond, 2*time.Second))
			}
		}
	}
}

// sendLater sends a copy of a request that has its reply, within the time in which it has to be recognized.
func (c *client) sendLater(r *request) {
	wait := between(c.random, 0, c.sim.tunables.front.SessionAge)
	c.sim.work.Go(func() {
		if c.sim.sleep(wait) {
			c.send(r)
		}
	})
}

// do sends an operation and waits for its reply.
func (c *client) do(o op) (*op, bool) {
	r := c.begin(o)
	replied := c.await(r)
	return r.op, replied
}
