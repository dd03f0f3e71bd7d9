package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// The states that notifySystemd reports. systemdReady is systemd's READY=1: it does not say that the node is ready as /readyz does.
const (
	systemdReady    = daemon.SdNotifyReady
	systemdStopping = daemon.SdNotifyStopping
)

// notifySystemd reports a state to systemd. It does nothing if systemd has not started this process with Type=notify.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("could not notify systemd", "state", state, "error", err)
	}
}
