package mqttfront

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// An ingest session that ends soon after it began was perhaps taken over by another client with this node's client id. Or the broker restarted, or
// something between node and broker closes connections. When short sessions repeat, a second connection with a random client id tells the cases
// apart: only a session takeover leaves it alone.
const (
	shortSession = 5 * time.Second
	maxShort     = 2 // so many short sessions are not probed
	// probeGrace is how long after the session's end the second connection may end and still count as ended together with it.
	probeGrace = 500 * time.Millisecond
)

// takeoverProbe is the second connection. A nil probe has seen nothing.
type takeoverProbe struct {
	publisher *mqttconn.Publisher
	broker    string      // address
	leaves    *time.Timer // closes the connection: a session that lasted is not suspicious
}

// startTakeoverProbe connects a probe. It returns nil if that fails: then the session is tried again as if it was not taken over.
func (f *Front) startTakeoverProbe(ctx context.Context) *takeoverProbe {
	ctx, cancel := context.WithTimeout(ctx, min(shortSession/5, f.config.ConnectTime)) // the session waits for it
	defer cancel()
	conn, err := f.world.Dialer.Dial(ctx)
	if err != nil {
		return nil
	}
	publisher, err := mqttconn.NewPublisher(ctx, conn, f.publisherConnect(fmt.Sprintf("%s-%08x", f.ingestID(), uint32(f.world.Random()))), f.config.Window)
	if err != nil {
		return nil
	}
	return &takeoverProbe{publisher, conn.RemoteAddr().String(), time.AfterFunc(shortSession+probeGrace, publisher.Close)}
}

// sawSessionTakeover reports whether a session that has ended with a broker ended alone. It returns false if the probe is connected to another broker.
func (p *takeoverProbe) sawSessionTakeover(ctx context.Context, broker string) bool {
	if p == nil || p.broker != broker {
		return false
	}
	timer := time.NewTimer(probeGrace)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-p.publisher.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (p *takeoverProbe) close() {
	if p != nil {
		p.leaves.Stop()
		p.publisher.Close()
	}
}

// connectPublisher connects to the broker, under a client id, only to publish.
func (f *Front) connectPublisher(ctx context.Context, clientID string) (*mqttconn.Publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, f.config.ConnectTime)
	defer cancel()
	conn, err := f.world.Dialer.Dial(ctx)
	if err != nil {
		return nil, err
	}
	publisher, err := mqttconn.NewPublisher(ctx, conn, f.publisherConnect(clientID), f.config.Window)
	if err != nil {
		f.world.Dialer.Next()
		return nil, fmt.Errorf("connect as %s: %w", clientID, err)
	}
	return publisher, nil
}

func (f *Front) publisherConnect(clientID string) *packets.Connect {
	config := &f.config
	password := config.password()
	return &packets.Connect{
		ClientID: clientID, CleanStart: true, KeepAlive: uint16(config.KeepAlive / time.Second),
		Username: config.Username, UsernameFlag: config.Username != "", Password: password, PasswordFlag: password != nil,
	}
}
