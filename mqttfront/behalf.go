package mqttfront

import (
	"context"
	"errors"
	"time"

	"holdfast/fsm"
)

// NotificationSubscriber is a Driver that can subscribe clients to their own notifications, for libraries that never do. Its method is safe for
// concurrent use.
type NotificationSubscriber interface {
	// SubscribeNotifications subscribes a connected client to a topic filter, unless it has a subscription there already. It reports whether it
	// made one. The error wraps ErrUnsupported where the driver is not set up for that.
	SubscribeNotifications(ctx context.Context, clientID, filter string) (made bool, err error)
}

const (
	// maxSubscribing bounds the clients that wait to be subscribed; beyond it the next ones are not, and counted.
	maxSubscribing = 1024
	// subscribeTime bounds the wait for a broker to do it.
	subscribeTime = 2 * time.Second
)

// notificationFilter returns the filter for all notifications of a client, with the single level for the key that the protocol's Rust library
// subscribes as well.
func notificationFilter(clientID string) string {
	return notificationPrefix + "/" + base16(clientID) + "/command/notify/+"
}

// subscribing is a client to be subscribed.
type subscribing struct {
	clientID string
	// end is proposed when the driver need not, or cannot, make a subscription: the broker found no subscriber for a notification of this watch.
	// When the driver fails, the next notification tries again. It is nil for a client that has just begun to watch.
	end *fsm.Command
}

// subscribeLocked has a client subscribed that watches a key. It does not wait for that.
func (f *Front) subscribeLocked(r *request, result *fsm.Result) {
	if r.command.Kind == fsm.KindKeyNotify && result.Code == fsm.CodeOK {
		f.trySubscribe(subscribing{clientID: r.command.Principal.ClientID})
	}
}

// trySubscribe queues a client to be subscribed. It returns false where the driver cannot do that.
func (f *Front) trySubscribe(s subscribing) bool {
	if _, able := f.world.Driver.(NotificationSubscriber); !able {
		return false
	}
	select {
	case f.subscribing <- s:
	default:
		f.world.Metrics.subscribed.WithLabelValues("dropped").Inc() // the next notification without a subscriber tries again
	}
	return true
}

// subscribeClients subscribes clients to their notifications, one after the other.
func (f *Front) subscribeClients(ctx context.Context) {
	driver, able := f.world.Driver.(NotificationSubscriber)
	if !able {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-f.subscribing:
			result := f.subscribe(ctx, driver, s.clientID)
			f.world.Metrics.subscribed.WithLabelValues(result).Inc()
			if s.end != nil && (result == "present" || result == "unsupported") {
				f.store.Propose(*s.end, nil)
				f.store.Flush()
			}
		}
	}
}

func (f *Front) subscribe(ctx context.Context, driver NotificationSubscriber, clientID string) (result string) {
	ctx, cancel := context.WithTimeout(ctx, subscribeTime)
	defer cancel()
	made, err := driver.SubscribeNotifications(ctx, clientID, notificationFilter(clientID))
	switch {
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	case err != nil:
		f.world.Log.Warn("a client could not be subscribed to its notifications", "client", clientID, "error", err)
		return "failed"
	case made:
		return "made"
	default:
		return "present"
	}
}
