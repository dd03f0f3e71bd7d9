package offer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// Store keeps the fingerprint of this node's last offer. Load returns nil if there is none. Save
// returns when the data is on the disk.
type Store interface {
	Load() ([]byte, error)
	Save([]byte) error
}

// Environment has what an Offerer uses of its node. The functions must be safe for concurrent use.
type Environment struct {
	Offered Store
	// Settings returns the settings in force. configured is false if none are yet.
	Settings func() (inForce fsm.Settings, configured bool)
	// Serving reports whether this node leads and accepts commands. Only then is its copy of the
	// settings certain to be the latest.
	Serving func() bool
	// Behind reports whether this node may lack entries that the leader has applied. It is true
	// until the first comparison with the leader.
	Behind func() bool
	// Execute proposes a command and waits for its result.
	Execute func(ctx context.Context, command fsm.Command) (fsm.Result, error)
	// CallLeader calls the leader that this node knows.
	CallLeader func(ctx context.Context, method peer.Method, request []byte) ([]byte, error)
	// AutoTotalBytes returns the least limit on keys and values that the memory of a member allows,
	// in bytes. all says that every member is known.
	AutoTotalBytes func() (least int64, all bool)
	Log            *slog.Logger
}

// Offerer offers the settings of one node to the cluster. All methods are safe for concurrent use.
type Offerer struct {
	env     Environment
	changed chan struct{} // has room for one
	// offering and composing have size 1: mutexes whose Lock a context can end. offering is locked
	// before composing.
	offering *semaphore.Weighted // held by Offer and Prepare
	// held from the merge with the settings in force until the result is applied
	composing *semaphore.Weighted

	mu     sync.Mutex
	wanted Offer
}

// New returns an Offerer whose current offer is first.
func New(first Offer, env Environment) *Offerer {
	return &Offerer{
		env: env, changed: make(chan struct{}, 1), offering: semaphore.NewWeighted(1),
		composing: semaphore.NewWeighted(1), wanted: first,
	}
}

// Set replaces this node's offer. Run proposes what changed, once there is a leader and this node
// has caught up.
func (o *Offerer) Set(offer Offer) {
	o.mu.Lock()
	o.wanted = offer
	o.mu.Unlock()
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// Offer proposes the parts of this node's settings and policy that changed since its last offer. If
// the cluster has no settings yet, a leader proposes all of them, and any other node returns
// peer.ErrNotLeader. The node stores a fingerprint of its last offer, so that a change of leader or
// of other settings does not bring back old ones. A node without a stored fingerprint is new or has
// lost its disk: it does not change settings that are in force.
func (o *Offerer) Offer(ctx context.Context) error {
	if o.offering.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	defer o.offering.Release(1)
	return o.offer(ctx)
}

// Prepare is Offer for a leader that is about to serve. If another Offer is under way, Prepare does
// nothing: that call may be waiting for a leader that is gone, and Run tries again.
func (o *Offerer) Prepare(ctx context.Context) error {
	if !o.offering.TryAcquire(1) {
		return nil
	}
	defer o.offering.Release(1)
	return o.offer(ctx)
}

func (o *Offerer) offer(ctx context.Context) error {
	o.mu.Lock()
	wanted := o.wanted
	o.mu.Unlock()
	data, err := o.env.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the last offer: %w", err)
	}
	last, remembered := readFingerprint(data)
	next := wanted.fingerprint()
	switch inForce, configured := o.env.Settings(); {
	case !configured:
		// execute, not propose: if this node does not lead, another leader may have settings by now
		err = o.execute(ctx, &wanted, whole)
	case !remembered:
		theirs := Offer{Settings: inForce, KeepPolicy: wanted.KeepPolicy}
		if theirs.fingerprint() != next {
			o.env.Log.Warn("this node's settings differ from the cluster's and are not applied: to apply them, change them on any node",
				"differences", differences(&wanted.Settings, &inForce))
		}
	case next == last:
		return nil
	default:
		if err = o.propose(ctx, &wanted, changedParts(&last, &next)); err == nil {
			o.env.Log.Info("this node's changed settings are in force")
		}
	}
	if err != nil {
		return err
	}
	if err := o.env.Offered.Save(next.bytes()); err != nil {
		return fmt.Errorf("store the last offer: %w", err)
	}
	return nil
}

// changedParts returns the parts that differ from the last offer.
func changedParts(last, now *fingerprint) (changed parts) {
	if last.settings != now.settings {
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

// propose puts the changed parts of an offer into the log, or asks the leader to do that.
func (o *Offerer) propose(ctx context.Context, offer *Offer, changed parts) error {
	err := o.execute(ctx, offer, changed)
	if errors.Is(err, peer.ErrNotLeader) {
		_, err = o.env.CallLeader(ctx, peer.MethodOffer, offer.encode(changed))
	}
	if err != nil {
		return fmt.Errorf("propose the settings: %w", err)
	}
	return nil
}

// execute merges the changed parts of an offer into the settings in force, and proposes the result
// unless it is what is in force. The error wraps peer.ErrNotLeader if this node does not lead.
func (o *Offerer) execute(ctx context.Context, offer *Offer, changed parts) error {
	if o.composing.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	defer o.composing.Release(1)
	if !o.env.Serving() {
		return peer.ErrNotLeader
	}
	if inForce, configured := o.env.Settings(); configured && changed != whole {
		offer = offer.mergedWith(inForce, changed)
		before, after := Offer{Settings: inForce}, Offer{Settings: offer.Settings}
		if before.fingerprint() == after.fingerprint() {
			return nil
		}
	}
	_, err := o.env.Execute(ctx, o.withMemory(offer).command())
	return err
}

// withMemory returns an offer whose limit on keys and values is what the members' memory allows, if
// it is to be.
func (o *Offerer) withMemory(offer *Offer) *Offer {
	if !offer.Settings.TotalBytesAuto {
		return offer
	}
	changed := *offer
	inForce, _ := o.env.Settings()
	least, all := o.env.AutoTotalBytes()
	if before := inForce.Limits.TotalBytes; inForce.TotalBytesAuto && before > 0 &&
		(least <= 0 || !all && before < least) {
		least = before // the member with the least memory may be away
	}
	changed.Settings.Limits.TotalBytes = max(least, 1)
	return &changed
}

// followMemory changes the limit on keys and values in force, if it is auto and this node leads: it
// falls as soon as a member with less memory is there, and rises when all members are known to have
// more.
func (o *Offerer) followMemory(ctx context.Context) error {
	if o.composing.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	defer o.composing.Release(1)
	inForce, configured := o.env.Settings()
	if !o.env.Serving() || !configured || !inForce.TotalBytesAuto {
		return nil
	}
	least, all := o.env.AutoTotalBytes()
	before := inForce.Limits.TotalBytes
	if least <= 0 || least == before || least > before && !all {
		return nil
	}
	if _, err := o.env.Execute(ctx,
		o.withMemory(&Offer{Settings: inForce, KeepPolicy: true}).command()); err != nil {
		return err
	}
	o.env.Log.Info("limits.totalBytes is auto, and follows the member with the least memory",
		"bytes", least, "before", before)
	return nil
}

// Handle proposes another member's offer. The error wraps peer.ErrRefused if the request is not a
// valid offer.
func (o *Offerer) Handle(ctx context.Context, request []byte) error {
	entry, err := fsm.DecodeEntry(request)
	if err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	if len(entry.Commands) != 1 || entry.Commands[0].Kind != fsm.KindConfigure ||
		parts(entry.Number)&^allParts != 0 {
		return fmt.Errorf("%w: not an offer of settings", peer.ErrRefused)
	}
	command := entry.Commands[0]
	return o.execute(ctx, &Offer{Settings: *command.Settings, KeepPolicy: command.KeepPolicy},
		parts(entry.Number))
}

// Run offers this node's settings once it has caught up with the leader, and when they change.
func (o *Offerer) Run(ctx context.Context) {
	const retry = 500 * time.Millisecond
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	for pending := true; ; {
		_, configured := o.env.Settings()
		// Nothing is offered before the cluster has settings: the leader of a new cluster proposes
		// its own before it serves. Nothing is offered while this node is behind: it may not know
		// yet which settings are in force.
		if pending && configured && !o.env.Behind() {
			offerCtx, cancel := context.WithTimeout(ctx, 10*retry)
			err := o.Offer(offerCtx)
			cancel()
			pending = err != nil
			if err != nil {
				o.env.Log.Debug("the offer of settings failed, will retry", "error", err)
			}
		}
		following, cancel := context.WithTimeout(ctx, 10*retry)
		err := o.followMemory(following)
		cancel()
		if err != nil {
			o.env.Log.Debug("the limit on keys and values was not changed, will retry", "error",
				err)
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
