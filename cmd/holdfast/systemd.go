package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// The states that notifySystemd reports. systemdReady (READY=1) says only that the process has
// started. /readyz says whether the node can serve.
const (
	systemdReady    = daemon.SdNotifyReady
	systemdStopping = daemon.SdNotifyStopping
)

// notifySystemd reports a state to systemd. It does nothing unless systemd started this process as
// a service with Type=notify.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("could not notify systemd", "state", state, "error", err)
	}
}
