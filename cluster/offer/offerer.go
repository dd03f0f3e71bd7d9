package offer

import (
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
	// Serving reports whether this member leads, and takes commands. Then its settings are the newest.
	Serving func() bool
	// Behind reports whether this member has not yet applied what the leader has, as far as it knows.
	Behind func() bool
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
	// Each has room for one, and is full while its lock is held. The first is taken before the second.
	offering  chan struct{} // held by Offer
	composing chan struct{} // held while the settings in force are read, and proposed with changes

	mu      sync.Mutex
	current Offer
}

// New returns an Offerer of a first offer.
func New(first Offer, env Environment) *Offerer {
	return &Offerer{
		env: env, changed: make(chan struct{}, 1), offering: make(chan struct{}, 1), composing: make(chan struct{}, 1), current: first,
	}
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

// lock takes a lock, or returns an error when the context ends before.
func lock(ctx context.Context, held chan struct{}) error {
	select {
	case held <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Offer proposes what changed of this node's settings, and of its policy, since the node offered them last. If no node ever offered any, it
// proposes all of them. The node remembers what it offered: so neither a change of leader nor a change of other settings brings back older
// settings or an older policy. A node without that memory is new, or has lost its disk: it leaves settings that are in force as they are.
func (o *Offerer) Offer(ctx context.Context) error {
	if err := lock(ctx, o.offering); err != nil {
		return err
	}
	defer func() { <-o.offering }()
	return o.offer(ctx)
}

// Prepare is Offer for a leader that is about to serve. It does not wait for a call of Run to a leader that may be gone: Run tries again.
func (o *Offerer) Prepare(ctx context.Context) error {
	select {
	case o.offering <- struct{}{}:
		defer func() { <-o.offering }()
		return o.offer(ctx)
	default:
		return nil
	}
}

func (o *Offerer) offer(ctx context.Context) error {
	o.mu.Lock()
	wanted := o.current
	o.mu.Unlock()
	data, err := o.env.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the settings offered last: %w", err)
	}
	last, remembered := readOffered(data)
	version := o.env.Version()
	current := wanted.asOf(version)
	now, all := offered{current.fingerprint(), max(last.version, version)}, wanted.fingerprint()
	if remembered && version < fsm.VersionMirrors {
		now.mirrors = last.mirrors // they are offered when the version is in force that knows them
	}
	inForce, configured := o.env.Settings()
	switch {
	case !configured: // not by way of a leader, which may have settings by now
		err = o.execute(ctx, current, whole)
	case !remembered:
		if same := (&Offer{Settings: inForce, KeepPolicy: current.KeepPolicy}).fingerprint(); same != now.fingerprint {
			o.env.Log.Warn("this node's settings differ from those of the cluster and are not in force: they come into force when they are changed on a node")
		}
		now = offered{all, fsm.Version} // so that a newer version of the log is no reason to offer
	case last == now:
		return nil
	case last.fingerprint == now.fingerprint: // only the version is to be remembered
	default:
		changed := changedParts(&last, &now.fingerprint, &all, wanted.asOf(fsm.VersionClientShares-1).fingerprint())
		switch {
		case changed == whole: // only an older version of the log is in force than at the last offer
			return nil
		case changed&(settingsPart|sharesPart) != 0:
			now.version = version
		case now.settings != last.settings: // as above: they are not offered now
			now.settings, now.version = last.settings, last.version
		}
		if err = o.propose(ctx, current, changed); err != nil {
			break
		}
		if current.leavesShares(&inForce.Limits, changed) {
			o.env.Log.Warn("this node's shares of clients differ from those of the cluster and are not in force: they come into force when they are changed on a node")
		}
		if changed != sharesPart {
			o.env.Log.Info("settings are in force")
		}
	}
	if err != nil {
		return err
	}
	if err := o.env.Offered.Save(now.bytes()); err != nil {
		return fmt.Errorf("remember the settings offered: %w", err)
	}
	return nil
}

// changedParts returns what differs from what this node offered last. all is its whole offer, and withoutShares what it would be without shares of clients.
func changedParts(last *offered, now, all *fingerprint, withoutShares fingerprint) (changed part) {
	switch {
	case last.settings == now.settings, last.settings == all.settings: // the second while an old log is applied again, in which an older version is in force
	case last.settings == withoutShares.settings && last.version < fsm.VersionClientShares: // only what a newer version of the log adds is new
		changed |= sharesPart
	default:
		changed |= settingsPart
	}
	if last.policy != now.policy {
		changed |= policyPart
	}
	if last.mirrors != now.mirrors {
		changed |= mirrorsPart
	}
	return changed
}

// propose puts an offer into the log, here or by way of the leader.
func (o *Offerer) propose(ctx context.Context, offer *Offer, p part) error {
	err := o.execute(ctx, offer, p)
	if errors.Is(err, peer.ErrNotLeader) {
		inForce, _ := o.env.Settings() // for a leader that is older
		_, err = o.env.CallLeader(ctx, peer.MethodOffer, offer.over(inForce, p).encode(p))
	}
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	return nil
}

// execute proposes an offer over the settings in force. The error wraps peer.ErrNotLeader if this member does not lead.
func (o *Offerer) execute(ctx context.Context, offer *Offer, p part) error {
	if err := lock(ctx, o.composing); err != nil {
		return err
	}
	defer func() { <-o.composing }()
	if !o.env.Serving() {
		return peer.ErrNotLeader
	}
	if inForce, configured := o.env.Settings(); configured && p != whole {
		offer = offer.over(inForce, p)
		if same := (&Offer{Settings: inForce}).fingerprint(); (&Offer{Settings: offer.Settings}).fingerprint() == same {
			return nil
		}
	}
	_, err := o.env.Execute(ctx, offer.command())
	return err
}

// Handle proposes another member's offer. The error wraps peer.ErrRefused if the request is none.
func (o *Offerer) Handle(ctx context.Context, request []byte) error {
	entry, err := fsm.DecodeEntry(request)
	if err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	if len(entry.Commands) != 1 || entry.Commands[0].Kind != fsm.KindConfigure || part(entry.Number)&^allParts != 0 {
		return fmt.Errorf("%w: this is no offer of settings", peer.ErrRefused)
	}
	command := entry.Commands[0]
	return o.execute(ctx, &Offer{Settings: *command.Settings, KeepPolicy: command.KeepPolicy}, part(entry.Number))
}

// Run offers this node's settings once it has caught up with the leader, when they change, and when a newer version of the log comes into force.
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
		// The leader of a new cluster puts its settings into force before it serves; the others wait for that. A member that is behind may know only an older
		// version of the log, without settings that are in force.
		if pending && configured && !o.env.Behind() {
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
