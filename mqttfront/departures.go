package mqttfront

import (
	"context"
	"fmt"
	"time"

	"holdfast/fsm"
)

// watchDepartures keeps asking the driver who went away.
func (f *Front) watchDepartures(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := f.world.Driver.Departures(ctx, f.departed)
		if err != nil && ctx.Err() == nil {
			f.mu.Lock()
			f.untold, f.untoldAt = err, time.Now()
			f.mu.Unlock()
			if text := err.Error(); text != said { // not once for each attempt
				said = text
				f.world.Log.Warn("the broker does not tell who goes away", "error", err)
			}
		}
		f.pause(ctx, f.config.BackoffMax)
	}
}

// Untold returns why watches of clients that go away do not end now, and nil when they do, or when nothing is known of the broker.
func (f *Front) Untold() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if attempt := f.config.BackoffMax + f.config.ConnectTime; f.untold == nil || time.Since(f.untoldAt) > 2*attempt { // it is being listened to
		return nil
	}
	return fmt.Errorf("the broker does not tell who goes away: %w", f.untold)
}

// departed notes a client's end for whoever leads, this node perhaps: a follower keeps the latest.
func (f *Front) departed(d Departure) {
	for {
		select {
		case f.departures <- d:
			return
		default:
		}
		select {
		case <-f.departures:
			f.world.Metrics.departures.WithLabelValues("dropped").Inc()
		default:
		}
	}
}

// endWatches puts a client's end into the log, when it has watches, or requests under way that may make some.
func (f *Front) endWatches(d Departure) {
	watches := d.Everyone
	if !watches {
		f.mu.Lock()
		watches = f.pending.writing[d.ClientID] > 0
		f.mu.Unlock()
	}
	if !watches {
		f.store.View(func(m *fsm.Machine) { watches = m.Watches(d.ClientID) })
	}
	if !watches {
		f.world.Metrics.departures.WithLabelValues("no_watches").Inc()
		return
	}
	f.world.Metrics.departures.WithLabelValues("logged").Inc()
	f.store.Propose(fsm.Command{Kind: fsm.KindClientGone, Principal: principal(d.ClientID), Everyone: d.Everyone, BrokerTime: d.Time}, nil)
	f.store.Flush()
}
