package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// disconnectedSince reports whether clients have lost more connections than before.
func (in *injection) disconnectedSince(ctx context.Context, before int64) bool {
	state, err := in.loadState(ctx)
	return err == nil && state.Disconnects > before
}

// restartBroker stops the broker, which then saves its database, and starts it again.
func (in *injection) restartBroker(ctx, always context.Context) (bool, error) {
	return in.withoutBroker(ctx, always, "stop", in.hasDatabase)
}

// killBroker kills the broker, and starts it with the database that it saved last or, with forget,
// without one.
func (in *injection) killBroker(ctx, always context.Context, forget bool) (bool, error) {
	return in.withoutBroker(ctx, always, "kill", func() error {
		if !forget {
			return in.hasDatabase()
		}
		return os.RemoveAll(in.database())
	})
}

func (in *injection) database() string {
	return filepath.Join(in.folder, "broker", "data", "mosquitto.db")
}

// hasDatabase returns an error if the broker has never written its database.
func (in *injection) hasDatabase() error {
	_, err := os.Stat(in.database())
	return err
}

// withoutBroker ends the broker by a Docker command (verb), waits for a third of the fault's time,
// calls then, and starts the broker. It waits for a third only, because the broker's clients stay
// away longer than the broker. It reports whether a client was disconnected.
func (in *injection) withoutBroker(ctx, always context.Context, verb string,
	then func() error,
) (bool, error) {
	in.brokerLock.Lock()
	defer in.brokerLock.Unlock()
	in.on, in.began = []string{"the broker"}, in.now()
	before, err := in.loadState(always)
	if err != nil {
		return false, err
	}
	err = in.broker.do(always, verb)
	if err == nil {
		sleep(ctx, in.lasts/3)
		err = then()
	}
	if err := errors.Join(err, in.broker.do(always, "start")); err != nil {
		return false, err
	}
	return in.disconnectedSince(always, before.Disconnects), nil
}

// pauseBroker freezes the broker: its connections stay open and silent.
func (in *injection) pauseBroker(ctx, always context.Context) (bool, error) {
	in.brokerLock.Lock()
	defer in.brokerLock.Unlock()
	in.on, in.began = []string{"the broker"}, in.now()
	err := in.broker.do(always, "pause")
	sleep(ctx, in.lasts)
	return err == nil, errors.Join(err, in.broker.do(always, "unpause"))
}
