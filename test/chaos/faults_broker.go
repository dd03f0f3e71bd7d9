package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// thrown reports whether clients lost their connections since there were as many losses.
func (in *injection) thrown(ctx context.Context, before int64) bool {
	state, err := in.loadState(ctx)
	return err == nil && state.Disconnects > before
}

// restartBroker stops the broker, which writes down what it has, and starts it again.
func (in *injection) restartBroker(ctx, always context.Context) (bool, error) {
	return in.withoutBroker(ctx, always, "stop", in.persisted)
}

// killBroker kills the broker, and starts it with what it wrote down last, or with nothing.
func (in *injection) killBroker(ctx, always context.Context, forget bool) (bool, error) {
	return in.withoutBroker(ctx, always, "kill", func() error {
		if !forget {
			return in.persisted()
		}
		return os.RemoveAll(in.database())
	})
}

func (in *injection) database() string {
	return filepath.Join(in.folder, "broker", "data", "mosquitto.db")
}

// persisted reports whether the broker has written down what it has.
func (in *injection) persisted() error {
	_, err := os.Stat(in.database())
	return err
}

func (in *injection) withoutBroker(ctx, always context.Context, verb string, then func() error) (bool, error) {
	in.brokerDown.Lock()
	defer in.brokerDown.Unlock()
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
	return in.thrown(always, before.Disconnects), nil
}

// pauseBroker stops the broker without a word to anybody.
func (in *injection) pauseBroker(ctx, always context.Context) (bool, error) {
	in.brokerDown.Lock()
	defer in.brokerDown.Unlock()
	in.on, in.began = []string{"the broker"}, in.now()
	err := in.broker.do(always, "pause")
	sleep(ctx, in.lasts)
	return err == nil, errors.Join(err, in.broker.do(always, "unpause"))
}
