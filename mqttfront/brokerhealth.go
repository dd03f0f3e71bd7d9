package mqttfront

import (
	"errors"
	"time"
)

// BrokerDownFor returns how long this node has been unable to serve clients. It is the longest of: the outage or silence of the node's own session; on the
// leader, the outage of a publishing connection; on the leader with cluster.ingest: leader, the outage or silence of the leader's session. A session counts
// as silent when it has delivered nothing for more than 1.5 probe intervals. 0 means no outage.
func (f *Front) BrokerDownFor() time.Duration {
	now := time.Now()
	silence := max(f.session.Silence(now), f.outbox.Down(now))
	if s := f.leaderSession.Load(); s != nil {
		silence = max(silence, s.Silence(now))
	}
	return silence
}

// Ready returns nil if the ingest sessions are up and the pending request buffer has dropped no request lately. Otherwise the error says what is wrong.
func (f *Front) Ready() error {
	if err := f.session.Err(); err != nil {
		return err
	}
	if f.dispatcher.DroppedLately() {
		return errors.New("the pending request buffer is full")
	}
	if s := f.leaderSession.Load(); s != nil {
		return s.Err()
	}
	return nil
}

// InTakeoverLoop reports whether the leader's publishing connections were lost so often lately that another client probably takes them over.
func (f *Front) InTakeoverLoop() bool { return f.outbox.InTakeoverLoop() }
