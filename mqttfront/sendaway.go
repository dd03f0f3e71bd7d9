package mqttfront

import (
	"context"
	"errors"
	"time"
)

const (
	// maxOffenders bounds the publishers that wait to be sent away; beyond it the next ones are not.
	maxOffenders = 64
	// sendAwayTime bounds the wait for a broker to do it.
	sendAwayTime = time.Second
)

// sendAway has the publisher of a request with an invalid response topic disconnected, by whoever leads, where it is known beyond doubt
// who it is: a forged identity must not get somebody else thrown out. It does not wait for that.
func (f *Front) sendAway(r *request) {
	publisher := Publisher{r.command.Principal.ClientID, r.command.Principal.Username}
	result := "untrusted"
	if f.world.Driver.TrustedIdentity() && publisher.ClientID != "" {
		if !f.leads() {
			return
		}
		select {
		case f.offenders <- publisher:
			return
		default:
			result = "dropped"
		}
	}
	f.world.Metrics.sentAway.WithLabelValues(result).Inc()
}

// sendOffendersAway sends publishers away, one after the other.
func (f *Front) sendOffendersAway(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case publisher := <-f.offenders:
			f.world.Metrics.sentAway.WithLabelValues(f.disconnect(ctx, publisher)).Inc()
		}
	}
}

func (f *Front) disconnect(ctx context.Context, publisher Publisher) (result string) {
	ctx, cancel := context.WithTimeout(ctx, sendAwayTime)
	defer cancel()
	switch err := f.world.Driver.Disconnect(ctx, publisher); {
	case err == nil:
		return "done"
	case errors.Is(err, ErrUnsupported):
		f.world.Log.Info("a client cannot be sent away", "reason", err)
		return "unsupported"
	default:
		f.world.Log.Warn("a client could not be sent away", "error", err)
		return "failed"
	}
}
