package mqttconn

import (
	"context"
	"fmt"

	"github.com/eclipse/paho.golang/paho"
)

// CheckReasons returns an error unless a SUBACK has as many reason codes as there are subscriptions. paho does not check that.
func CheckReasons(suback *paho.Suback, subscriptions []paho.SubscribeOptions) error {
	if len(suback.Reasons) != len(subscriptions) {
		return fmt.Errorf("subscribe: the broker answered %d filters with %d reason codes", len(subscriptions), len(suback.Reasons))
	}
	return nil
}

// Subscribe subscribes, and checks that each subscription was granted with the QoS that it asks for. It returns when the connection ends: paho's
// Subscribe alone would wait for its timeout.
func Subscribe(ctx context.Context, client *paho.Client, subscriptions ...paho.SubscribeOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-client.Done():
			cancel()
		case <-stop:
		}
	}()
	suback, err := client.Subscribe(ctx, &paho.Subscribe{Subscriptions: subscriptions})
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := CheckReasons(suback, subscriptions); err != nil {
		return err
	}
	for i, granted := range suback.Reasons {
		if qos := subscriptions[i].QoS; granted != qos {
			return fmt.Errorf("subscribe to %s: the broker granted 0x%02X instead of QoS %d", subscriptions[i].Topic, granted, qos)
		}
	}
	return nil
}
