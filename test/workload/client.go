package workload

import (
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/hlc"
	"holdfast/internal/topics"
	"holdfast/resp"
	"holdfast/test/history"
)

// Client is one client of the store. Begin, Do, Await, Probe and ReadAll are for one goroutine at a
// time. Receive and Publication.Reached may run in others at the same time.
type Client struct {
	ID   string
	load *Load
	// publish passes a publication to the code that sends it to the broker, in order. It must not
	// wait for the broker.
	publish func(*Publication)
	random  *rand.Rand

	mu       sync.Mutex
	requests map[string]*awaited // by correlation data
	clock    hlc.Clock
	counter  int
}

// Request is an operation that waits for its reply.
type Request struct {
	*awaited
	payload    []byte
	properties *packets.Properties
}

// awaited is what a Client keeps of a request until the end of the run, for late replies. It has no
// payload, which may be large.
type awaited struct {
	Op   *history.Op
	done chan struct{} // closed at the first reply
	next string        // the continuation token of the reply; the history has its label
}

// Publication is a request on its way to the broker, or a copy of it.
type Publication struct {
	Payload    []byte
	Properties *packets.Properties
	client     *Client
	op         *history.Op
	copy       int // index in Op.Sendings
}

// Reached records that the publication reached the broker. receivers are the sessions that got it
// from there, or "broker" where they are not known.
func (p *Publication) Reached(receivers []string) {
	p.client.mu.Lock()
	defer p.client.mu.Unlock()
	p.op.Sendings[p.copy].Receivers = append([]string{}, receivers...)
}

// Hire returns a new client, whose publications go to publish.
func (l *Load) Hire(id string, publish func(*Publication)) *Client {
	seed := uint64(0)
	for _, b := range []byte(id) {
		seed = seed*31 + uint64(b)
	}
	return &Client{
		ID: id, load: l, publish: publish, random: rand.New(rand.NewPCG(l.Seed, seed)),
		requests: make(map[string]*awaited),
	}
}

// ResponseTopic is where the client gets its replies.
func (c *Client) ResponseTopic() string {
	return "clients/" + c.ID + "/services/statestore/_any_/command/invoke/response"
}

// NotifyFilter is the filter of the topics on which the client is told of changes.
func (c *Client) NotifyFilter() string {
	return topics.NotificationPrefix(c.ID) + "+"
}

// Receive records a message that came from the broker: a reply or a notification.
func (c *Client) Receive(topic string, payload []byte, properties *packets.Properties) {
	version := hlc.Timestamp{}
	for _, user := range properties.User {
		if user.Key == "__ts" {
			version, _ = hlc.Parse(user.Value) // an unreadable version counts as none
		}
	}
	if ahead := version.Wall - time.Now().UnixMilli(); ahead > 60_000 {
		c.load.History.AddAhead("%s got %s, which is %d ms ahead of the world", c.ID, version,
			ahead)
	}
	if rest, ok := strings.CutPrefix(topic, topics.Notifications); ok {
		c.receiveNotification(rest, topic, payload, version)
		return
	}
	reply, err := resp.ReadReply(payload)
	if err != nil {
		c.load.History.AddOdd("%s got a reply that cannot be read: %q", c.ID, payload)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.requests[string(properties.CorrelationData)]
	if r == nil {
		return // to no request of this client
	}
	switch {
	case !r.Op.Wrapped:
	case reply.Kind == resp.ReplyArray && len(reply.Replies) == 1:
		reply = reply.Replies[0]
	case reply.Kind != resp.ReplyNotApplied && reply.Kind != resp.ReplyError:
		c.load.History.AddOdd("%s got no reply to a transaction: %q", c.ID, payload)
	}
	now := c.load.Now()
	reply.Bulk = label(reply.Bulk)
	for i, key := range reply.Keys {
		reply.Keys[i] = label(key)
	}
	text := string(payload)
	if len(text) > maxLabel {
		text = string(reply.Bulk)
	}
	if r.Op.Known {
		r.Op.Again = append(r.Op.Again,
			history.Repeat{At: now, Reply: reply, Payload: text, Version: version})
		return
	}
	r.Op.Known, r.Op.Replied, r.Op.Reply, r.Op.Payload, r.Op.Version = true, now, reply, text,
		version
	r.next = string(reply.Next)
	r.Op.Reply.Next = label(reply.Next)
	r.Op.NotesAt = c.load.History.NotificationCount(c.ID)
	if !version.IsZero() {
		c.clock.RaiseTo(version)
	}
	close(r.done)
	c.load.Answered.Add(1)
}

func (c *Client) receiveNotification(rest, topic string, payload []byte, version hlc.Timestamp) {
	if version.IsZero() {
		return // no change: the store finds out whether this client is still there
	}
	parts := strings.Split(rest, "/")
	notification, err := resp.ReadNotification(payload)
	key, keyErr := hex.DecodeString(parts[len(parts)-1])
	if err != nil || keyErr != nil {
		c.load.History.AddOdd("%s got a notification that cannot be read: %s %q", c.ID, topic,
			payload)
		return
	}
	c.load.History.AddNote(c.ID, history.Notification{
		At: c.load.Now(), Key: string(key), Deleted: notification.Deleted,
		Value: string(label(notification.Value)), Version: version,
	})
}

// MissedNotes notes that the client may have missed notifications: the broker has forgotten its
// session.
func (c *Client) MissedNotes() { c.load.History.AddGap(c.ID, c.load.Now()) }

// Begin adds an operation to the history, and sends it for the first time.
func (c *Client) Begin(o history.Op) *Request {
	c.mu.Lock()
	c.counter++
	o.Client, o.Sequence, o.Call = c.ID, c.counter, c.load.Now()
	o.Wrapped = o.Verb == history.Set && c.random.IntN(8) == 0
	ts := c.clock.Now(time.Now().UnixMilli()).Timestamp(c.ID)
	c.mu.Unlock()
	recorded := &o
	c.load.History.Add(recorded)
	correlation := recorded.Correlation()
	properties := &packets.Properties{
		ResponseTopic: c.ResponseTopic(), CorrelationData: []byte(correlation),
		User: []packets.User{
			{Key: "__ts", Value: ts.String()},
			{Key: "__srcId", Value: c.ID},
			{Key: "__protVer", Value: "1.0"},
		},
	}
	if !o.NoExpiry {
		expiry := uint32(c.load.Expiry)
		properties.MessageExpiry = &expiry
	}
	if !o.Token.IsZero() {
		properties.User = append(properties.User,
			packets.User{Key: "__ft", Value: o.Token.String()})
	}
	r := &Request{
		awaited: &awaited{Op: recorded, done: make(chan struct{})},
		payload: resp.AppendArray(nil, arguments(&o)...), properties: properties,
	}
	if o.Wrapped {
		r.payload = resp.AppendArray(nil, "TXN", string(r.payload))
	}
	recorded.After = string(label([]byte(o.After)))
	c.mu.Lock()
	c.requests[correlation] = r.awaited
	c.mu.Unlock()
	c.send(r)
	return r
}

// send publishes a request, or a copy of it.
func (c *Client) send(r *Request) {
	c.mu.Lock()
	r.Op.Sendings = append(r.Op.Sendings, history.Sending{At: c.load.Now()})
	p := &Publication{
		Payload: r.payload, Properties: r.properties, client: c, op: r.Op,
		copy: len(r.Op.Sendings) - 1,
	}
	c.mu.Unlock()
	c.publish(p)
}

// arguments returns the verb and the arguments of the command that the store is sent.
func arguments(o *history.Op) []string {
	key := content(o.Key, o.KeySize)
	switch o.Verb {
	case history.Scan:
		if o.After == "" {
			return []string{"SCAN", o.Key}
		}
		return []string{"SCAN", o.Key, o.After}
	case history.Txn:
		words := []string{"TXN"}
		for i := range o.Parts {
			words = append(words, string(resp.AppendArray(nil, arguments(&o.Parts[i])...)))
		}
		return words
	case history.Set:
		arguments := []string{"SET", key, content(o.Value, o.Size)}
		if o.Condition != history.Always {
			arguments = append(arguments, string(o.Condition))
		}
		if o.Condition == history.IfVer {
			arguments = append(arguments, o.ExpectedVersion.String())
		} else if o.Expected != "" {
			arguments = append(arguments, o.Expected)
		}
		if o.TTL > 0 {
			arguments = append(arguments, "PX", strconv.FormatInt(o.TTL.Milliseconds(), 10))
		}
		return arguments
	case history.Del:
		if o.Condition == history.IfVer {
			return []string{"DEL", key, "IFVER", o.ExpectedVersion.String()}
		}
		return []string{"DEL", key}
	case history.VDel:
		return []string{"VDEL", o.Key, o.Value}
	case history.Notify, history.Stop:
		arguments := []string{"KEYNOTIFY", o.Key}
		if o.Glob {
			arguments = append(arguments, "GLOB")
		}
		if o.Verb == history.Stop {
			arguments = append(arguments, "STOP")
		}
		return arguments
	default:
		return []string{string(o.Verb), key}
	}
}

// Await waits for the reply, at most until a second after the expiry of the request. It may send
// copies meanwhile, and one after the reply. It reports whether a reply came.
func (c *Client) Await(r *Request) bool {
	expiry := time.Duration(c.load.Expiry) * time.Second
	if r.Op.NoExpiry {
		expiry = c.load.DefaultExpiry
	}
	deadline := time.NewTimer(r.Op.Call + expiry + time.Second - c.load.Now())
	defer deadline.Stop()
	copies := 0
	if !r.Op.Anonymous {
		copies = c.random.IntN(3)
	}
	again := time.NewTimer(between(c.random, 300*time.Millisecond, 2*time.Second))
	defer again.Stop()
	for {
		select {
		case <-r.done:
			if !r.Op.Anonymous && c.random.IntN(6) == 0 {
				c.sendLater(r)
			}
			return true
		case <-deadline.C:
			return false
		case <-c.load.end:
			return false
		case <-again.C:
			if copies > 0 && c.load.Now()-r.Op.Call < expiry/2 {
				copies--
				c.send(r)
				again.Reset(between(c.random, 300*time.Millisecond, 2*time.Second))
			}
		}
	}
}

// sendLater sends a copy of an answered request within CopyWindow, in which the store has to
// recognize it.
func (c *Client) sendLater(r *Request) {
	wait := between(c.random, 0, c.load.CopyWindow)
	c.load.Go(func() {
		if c.load.Sleep(wait) {
			c.send(r)
		}
	})
}

// Do sends an operation and waits for its reply.
func (c *Client) Do(o history.Op) (*history.Op, bool) {
	r := c.Begin(o)
	replied := c.Await(r)
	return r.Op, replied
}
