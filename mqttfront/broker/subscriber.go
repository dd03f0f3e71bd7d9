package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

const (
	// maxSubscriptions bounds the subscriptions that wait to be made; while so many wait, new ones
	// are dropped.
	maxSubscriptions = 1024
	// subscribeTimeout bounds one call of a driver's SubscribeNotifications.
	subscribeTimeout = 2 * time.Second
)

// Subscription is a client's subscription to its notifications.
type Subscription struct {
	ClientID string
	Filter   string
	// NotMade is called by Subscriber.Run if the driver made no subscription because the client has
	// one already, because the broker does not know the client, or because the driver returned
	// ErrUnsupported. It is not called if the driver failed, if the queue was full, or if Subscribe
	// returned false. It may be nil.
	NotMade func()
}

// Subscriber subscribes clients to their notifications, one after the other, while requests go on.
// It is safe for concurrent use.
type Subscriber struct {
	driver        NotificationSubscriber // nil if the driver cannot do it
	count         func(result string)
	log           *slog.Logger
	subscriptions chan Subscription
}

// NewSubscriber returns a Subscriber that is not running yet. It calls count with the result of
// each subscription: made, present, unsupported, failed, or dropped (the queue was full).
func NewSubscriber(driver Driver, count func(result string), log *slog.Logger) *Subscriber {
	able, _ := driver.(NotificationSubscriber)
	return &Subscriber{
		driver: able, count: count, log: log,
		subscriptions: make(chan Subscription, maxSubscriptions),
	}
}

// Run makes subscriptions until the context ends.
func (s *Subscriber) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case wanted := <-s.subscriptions:
			result := s.subscribe(ctx, wanted)
			s.count(result)
			if wanted.NotMade != nil && (result == "present" || result == "unsupported") {
				wanted.NotMade()
			}
		}
	}
}

// Subscribe queues a subscription, and does not wait for it. It returns false if the driver cannot
// subscribe clients.
func (s *Subscriber) Subscribe(wanted Subscription) bool {
	if s.driver == nil {
		return false
	}
	select {
	case s.subscriptions <- wanted:
	default:
		s.count("dropped") // the next notification without a subscriber tries again
	}
	return true
}

func (s *Subscriber) subscribe(ctx context.Context, wanted Subscription) (result string) {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	made, err := s.driver.SubscribeNotifications(ctx, wanted.ClientID, wanted.Filter)
	switch {
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	case err != nil:
		s.log.Warn("subscribing a client to its notifications failed", "client", wanted.ClientID,
			"error", err)
		return "failed"
	case made:
		return "made"
	default:
		return "present"
	}
}
