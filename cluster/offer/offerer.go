package offer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// Memory keeps the fingerprint of what this member offered last. Save returns when the disk has it.
type Memory interface {
	Load() ([]byte, error)
	Save([]byte) error
}

// Environment is all that an Offerer touches. The functions are safe for concurrent use.
type Environment struct {
	Offered Memory
	// Settings returns the settings in force, and whether any are.
	Settings func() (inForce fsm.Settings, configured bool)
	// Version returns the version of the log that is in force.
	Version func() uint32
	// Serving reports whether this member leads, and takes commands.
	Serving func() bool
	// Execute proposes a command and waits for its result.
	Execute func(ctx context.Context, command fsm.Command) (fsm.Result, error)
	// CallLeader calls the leader that this member knows.
	CallLeader func(ctx context.Context, method peer.Method, request []byte) ([]byte, error)
	Log        *slog.Logger
}

// Offerer offers the settings of one member to the cluster. All methods are safe for concurrent use.
type Offerer struct {
	env     Environment
	changed chan struct{} // has room for one

	mu      sync.Mutex
	current Offer
}

// New returns an Offerer of a first offer.
func New(first Offer, env Environment) *Offerer {
	return &Offerer{env: env, changed: make(chan struct{}, 1), current: first}
}

// Set changes what this member wants the settings to be. It is proposed as soon as there is a leader.
func (o *Offerer) Set(offer Offer) {
	o.mu.Lock()
	o.current = offer
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Offer proposes what changed of this node's settings, and of its policy, since the node offered them last. If no node ever offered any, it
// proposes all of them. The node remembers what it offered: so neither a change of leader nor a change of other settings brings back older
// settings or an older policy. A node without that memory is new, or has lost its disk: it leaves settings that are in force as they are.
func (o *Offerer) Offer(ctx context.Context) error {
	o.mu.Lock()
	wanted := o.current
	o.mu.Unlock()
	current := wanted.asOf(o.env.Version())
	now := current.Fingerprint()
	last, err := o.env.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the settings offered last: %w", err)
	}
	inForce, configured := o.env.Settings()
	switch {
	case configured && (bytes.Equal(last, now) || bytes.Equal(last, wanted.Fingerprint())):
		return nil // the second is true while an old log is applied again, in which an older version is in force
	case configured && bytes.Equal(last, wanted.asOf(fsm.VersionMirrors-1).Fingerprint()):
		// Only mirrors are new on this node, or a version of the log came into force that knows them.
		inForce.Mirrors = current.Settings.Mirrors
		if err := o.propose(ctx, &Offer{Settings: inForce, KeepPolicy: true}); err != nil {
			return err
		}
	case configured && bytes.Equal(last, wanted.asOf(fsm.VersionClientShares-1).Fingerprint()):
		// The settings are as this node offered them, and a newer version of the log came into force: only what that brings is new.
		if err := o.addNew(ctx, inForce, &current.Settings); err != nil {
			return err
		}
	case configured && len(last) != len(now): // this node has never offered
		same := Offer{Settings: inForce, KeepPolicy: current.KeepPolicy}
		if !bytes.Equal(same.Fingerprint(), now) {
			o.env.Log.Warn("this node's settings differ from those of the cluster and are not in force: they come into force when they are changed on a node")
		}
	default:
		if err := o.propose(ctx, current.changed(configured, last, now, inForce)); err != nil {
			return err
		}
		o.env.Log.Info("settings are in force")
	}
	if err := o.env.Offered.Save(now); err != nil {
		return fmt.Errorf("remember the settings offered: %w", err)
	}
	return nil
}

// errNewPending says that the leader has not yet proposed what a new version of the log adds to the settings.
var errNewPending = errors.New("the leader has not proposed the shares of clients and the mirrors yet")

// addNew adds the shares of clients, and mirrors if the version in force knows them, to the settings in force. Only a leader does, whose state is the
// newest: another node would put older settings into force with them.
func (o *Offerer) addNew(ctx context.Context, inForce fsm.Settings, wanted *fsm.Settings) error {
	shares := inForce.Limits.WatchesPerClient != 0 || inForce.Limits.DedupPerClient != 0
	mirrors := len(inForce.Mirrors) > 0 || len(wanted.Mirrors) == 0
	if shares && mirrors {
		return nil // a leader has
	}
	if !o.env.Serving() {
		return errNewPending
	}
	if !shares {
		inForce.Limits.WatchesPerClient, inForce.Limits.DedupPerClient = wanted.Limits.WatchesPerClient, wanted.Limits.DedupPerClient
	}
	if !mirrors {
		inForce.Mirrors = wanted.Mirrors
	}
	return o.propose(ctx, &Offer{Settings: inForce, KeepPolicy: true})
}

// propose puts settings into the log, here or by way of the leader.
func (o *Offerer) propose(ctx context.Context, offer *Offer) error {
	_, err := o.env.Execute(ctx, offer.command())
	if errors.Is(err, peer.ErrNotLeader) {
		_, err = o.env.CallLeader(ctx, peer.MethodOffer, offer.encode())
	}
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	return nil
}

// Handle proposes another member's offer. The error wraps peer.ErrRefused if the request is none.
func (o *Offerer) Handle(ctx context.Context, request []byte) error {
	entry, err := fsm.DecodeEntry(request)
	if err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	if len(entry.Commands) != 1 || entry.Commands[0].Kind != fsm.KindConfigure {
		return fmt.Errorf("%w: this is no offer of settings", peer.ErrRefused)
	}
	_, err = o.env.Execute(ctx, entry.Commands[0])
	return err
}

// Run offers this node's settings once the state has any or a leader is known, when they change, and when a newer version of the log comes into force.
func (o *Offerer) Run(ctx context.Context) {
	const retry = 500 * time.Millisecond
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	version := uint32(0) // of the log, at the last offer
	for pending := true; ; {
		_, configured := o.env.Settings()
		if now := o.env.Version(); now != version {
			pending, version = true, now
		}
		// The leader of a new cluster puts its settings into force before it serves; the others wait for that.
		if pending && configured {
			offering, cancel := context.WithTimeout(ctx, 10*retry)
			err := o.Offer(offering)
			cancel()
			pending = err != nil
			if err != nil {
				o.env.Log.Debug("the settings could not be offered yet", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-o.changed:
			pending = true
		case <-ticker.C:
		}
	}
}
