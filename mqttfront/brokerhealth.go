package mqttfront

import (
	"errors"
	"time"
)

// BrokerDownFor returns how long this node has been unable to serve clients. It is the longest of:
// the outage or silence of the node's own session; on the leader, the outage of a publishing
// connection, and the outage or silence of the cluster's session. A session counts as silent when
// it has delivered nothing for more than 1.5 probe intervals. 0 means no outage.
func (f *Front) BrokerDownFor() time.Duration {
	now := time.Now()
	silence := max(f.session.Silence(now), f.outbox.Down(now))
	if s := f.leading.session.Load(); s != nil {
		silence = max(silence, s.Silence(now))
	}
	return silence
}

// Ready returns nil if the sessions are up. Otherwise the error says what is wrong.
func (f *Front) Ready() error {
	if err := f.session.Err(); err != nil {
		return err
	}
	if err := f.exclusive.Err(); err != nil {
		return err
	}
	if f.outbox.InTakeoverLoop() {
		return errors.New("another cluster of this name seems to use the same broker: the publishing connections are taken over again and again")
	}
	if s := f.leading.session.Load(); s != nil {
		return s.Err()
	}
	return nil
}

// Serving reports whether this node, as the leader, receives requests and answers them.
func (f *Front) Serving() bool {
	s := f.leading.session.Load()
	return f.leading.serving.Load() && s != nil && s.Up()
}

// Notes returns what an operator has to know of the broker while the node is ready.
func (f *Front) Notes() []string { return append(f.session.Notes(), f.exclusive.Notes()...) }
