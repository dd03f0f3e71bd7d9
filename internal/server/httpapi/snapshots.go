package httpapi

import (
	"net/http"
	"time"
)

// snapshotTimeout bounds a request that takes, saves or restores a snapshot.
const snapshotTimeout = time.Hour

func (a *admin) takeSnapshot(w http.ResponseWriter, r *http.Request) error {
	extendDeadlines(w, snapshotTimeout)
	if err := a.Node.Snapshots().Create(); err != nil {
		return err
	}
	return a.status(w, r)
}

func (a *admin) saveSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := a.Node.Confirm(r.Context()); err != nil {
		return err
	}
	extendDeadlines(w, snapshotTimeout)
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := a.Node.Snapshots().Save(w); err != nil {
		// The status code is sent already. The client sees that the body breaks off; the checksum
		// of the snapshot shows it, too.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (a *admin) restoreSnapshot(w http.ResponseWriter, r *http.Request) error {
	extendDeadlines(w, snapshotTimeout)
	return writeDone(w, a.Node.Snapshots().Restore(r.Context(), r.Body))
}
