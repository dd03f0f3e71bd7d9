package mqttfront

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"holdfast/internal/mqttconn"
)

// A session that ends without a word, soon after it began, was perhaps taken over by somebody who uses this node's name; or the broker
// was restarted, or something between here and there closes connections. When it happens again and again, a second connection, under a
// name that nobody else uses, tells the one from the other: only a take-over leaves it alone.
const (
	shortSession = 5 * time.Second
	maxShort     = 2 // as many are not looked into
	// witnessTime is how long after the session's end the second connection may end and still count as ended together with it.
	witnessTime = 500 * time.Millisecond
)

// witness is the second connection. The nil witness has seen nothing.
type witness struct {
	publisher *mqttconn.Publisher
	broker    string      // address
	leaves    *time.Timer // a session that has lasted is no matter any more
}

// callWitness connects a witness. Without one, whoever is taken over goes on trying.
func (f *Front) callWitness(ctx context.Context) *witness {
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
	return &witness{publisher, conn.RemoteAddr().String(), time.AfterFunc(shortSession+witnessTime, publisher.Close)}
}

// sawTakeOver reports, after a session with a broker has ended, whether it ended alone. Of another broker the witness knows nothing.
func (w *witness) sawTakeOver(ctx context.Context, broker string) bool {
	if w == nil || w.broker != broker {
		return false
	}
	timer := time.NewTimer(witnessTime)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.publisher.Done():
		return false
	case <-timer.C:
		return true
	}
}

func (w *witness) close() {
	if w != nil {
		w.leaves.Stop()
		w.publisher.Close()
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
