package mqttfront

import (
	"errors"
	"time"
)

// BrokerDownFor returns for how long this node could not have served clients: because its session with the broker is down,
// because nothing has come over it for more than 1.5 probe intervals, or because, while it leads, a publishing connection
// is down.
func (f *Front) BrokerDownFor() time.Duration {
	now := time.Now()
	silence := max(f.session.Silence(now), f.outbox.Down(now))
	if s := f.leaderSession.Load(); s != nil {
		silence = max(silence, s.Silence(now))
	}
	return silence
}

// Ready returns nil when requests come from the broker and there is room for them, else what is wrong.
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
