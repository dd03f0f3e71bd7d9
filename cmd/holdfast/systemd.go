package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// States that a service of systemd's Type=notify tells.
const (
	started  = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
)

// notifySystemd tells systemd a state, where it has started this process as a service that does.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd is not told", "state", state, "error", err)
	}
}
