package main

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"holdfast/cluster"
	"holdfast/internal/mqttconn"
	"holdfast/internal/server/settings"
	"holdfast/internal/tlsconfig"
	"holdfast/mqttfront"
	"holdfast/mqttfront/broker"
	"holdfast/mqttfront/emqx"
	"holdfast/mqttfront/mosquitto"
	"holdfast/mqttfront/presence"
)

// newDriver returns the driver for the configured broker. The driver opens its own connections.
func newDriver(s *settings.Settings, front *mqttfront.Config, dialer *mqttconn.Dialer,
	log *slog.Logger,
) (broker.Driver, error) {
	config := presence.Config{
		Cluster: s.Cluster.Name, Node: s.Node.ID,
		Login: mqttconn.Login{
			Dialer: &mqttconn.Dialer{
				Addresses: dialer.Addresses, Renew: dialer.Renew,
				Timeout: dialer.Timeout,
			},
			Username: front.Username, Password: front.Password,
			KeepAlive: front.KeepAlive, Timeout: front.ConnectTimeout,
		},
		Wall: cluster.SystemClock().Wall, Boot: rand.Uint64(), Log: log,
		Trusted:       s.Identity.ClientIDProperty != "",
		SessionExpiry: front.SessionExpiry, Interval: front.ProbeInterval,
	}
	switch s.Broker.Driver {
	case "mosquitto":
		return mosquitto.New(config), nil
	case "emqx":
		api, err := emqxAPI(&s.Broker.API, log)
		if err != nil {
			return nil, err
		}
		return emqx.New(config, api), nil
	default:
		return broker.NoDriver{}, nil
	}
}

func emqxAPI(s *settings.API, log *slog.Logger) (emqx.API, error) {
	const timeout = 10 * time.Second
	if s.URL == "" {
		return emqx.API{}, nil
	}
	transport, err := tlsconfig.Files{CA: s.CAFile}.HTTP()
	if err != nil {
		return emqx.API{}, &usageError{fmt.Errorf("broker.api.caFile: %w", err)}
	}
	key, err := followSecret(s.KeyFile, log)
	if err != nil {
		return emqx.API{}, &usageError{fmt.Errorf("broker.api.keyFile is %q: %w", s.KeyFile, err)}
	}
	return emqx.API{
		URL: s.URL, Key: key,
		Client: &http.Client{Transport: transport, Timeout: timeout},
	}, nil
}
