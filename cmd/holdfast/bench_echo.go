package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"

	"holdfast/internal/echo"
	"holdfast/internal/mqttconn"
)

// startEcho connects the clients that answer instead of a store, on a topic of their own, and makes that the one that requests go
// to. stop ends them, and returns why one ended before.
func (o *benchOptions) startEcho(ctx context.Context) (stop func() error, err error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	random := make([]byte, 6)
	_, _ = rand.Read(random)                                                                                  // never fails
	o.invokeTopic = "statestore/v1/00000000-0000-0000-0000-" + hex.EncodeToString(random) + "/command/invoke" // as long as the store's
	dialer := &mqttconn.Dialer{TLS: config.TLS, Timeout: o.timeout}
	for _, text := range config.Addresses {
		address, err := mqttconn.ParseAddress(text)
		if err != nil {
			return nil, err // config has looked at it
		}
		dialer.Addresses = append(dialer.Addresses, address)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var responders, connecting sync.WaitGroup
	stop = func() error {
		ended := context.Cause(ctx)
		cancel(nil)
		responders.Wait()
		return ended
	}
	for i := range o.subscribers {
		connecting.Add(1)
		connected := sync.OnceFunc(connecting.Done)
		responders.Go(func() {
			defer connected()
			err := echo.Run(ctx, echo.Config{
				Dialer: dialer, Username: config.Username, Password: config.Password, ClientID: fmt.Sprintf("holdfast-echo-%x-%d", random, i),
				Topic: o.invokeTopic, Answer: i == 0, ValueSize: o.valueSize, Connected: connected,
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	connecting.Wait()
	if context.Cause(ctx) != nil {
		return nil, stop()
	}
	return stop, nil
}
