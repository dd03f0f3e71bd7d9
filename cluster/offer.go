package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"holdfast/cluster/peer"
	"holdfast/fsm"
)

// Offer is what a node wants the settings of the cluster to be.
type Offer struct {
	Settings fsm.Settings
	// KeepPolicy leaves the policy in force as it is: the node has no policy file.
	KeepPolicy bool
}

func (o *Offer) command() fsm.Command {
	settings := o.Settings
	return fsm.Command{Kind: fsm.KindConfigure, Settings: &settings, KeepPolicy: o.KeepPolicy}
}

// encode returns the offer as the log has it.
func (o *Offer) encode() []byte {
	return fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{o.command()}})
}

// fingerprint returns bytes that are the same for the same offer: one half for the settings, one for the policy.
func (o *Offer) fingerprint() []byte {
	settings, policy := *o, *o
	settings.Settings.Policy, settings.KeepPolicy = nil, false
	policy.Settings = fsm.Settings{Policy: o.Settings.Policy}
	if o.KeepPolicy {
		policy.Settings.Policy = nil
	}
	first, second := sha256.Sum256(settings.encode()), sha256.Sum256(policy.encode())
	return append(first[:], second[:]...)
}

// before returns the offer as a cluster can apply it in which a version of the log is in force.
func (o Offer) before(version uint32) *Offer {
	o.Settings = o.Settings.Before(version)
	return &o
}

// offers holds what this node offers now.
type offers struct {
	mu      sync.Mutex
	current Offer
	changed chan struct{} // has room for one
}

func newOffers(first Offer) *offers {
	return &offers{current: first, changed: make(chan struct{}, 1)}
}

// SetOffer changes what this node wants the settings to be. It is proposed as soon as there is a leader.
func (n *Node) SetOffer(offer Offer) {
	n.offers.mu.Lock()
	n.offers.current = offer
	n.offers.mu.Unlock()
	select {
	case n.offers.changed <- struct{}{}:
	default:
	}
}

// offer proposes what changed of this node's settings, and of its policy, since it offered them last, or all of them when none
// were ever offered by anybody. What it offered is remembered, so that a leader change, or a change of something else, brings
// back nobody's older settings or policy. A node without a memory that finds settings in force leaves them so: it is new, or has
// lost its disk.
func (n *Node) offer(ctx context.Context) error {
	n.offers.mu.Lock()
	wanted := n.offers.current
	n.offers.mu.Unlock()
	current := wanted.before(n.replica.Status().Version)
	now := current.fingerprint()
	last, err := n.world.Stores.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the settings offered last: %w", err)
	}
	var inForce fsm.Settings
	configured := false
	n.View(func(m *fsm.Machine) { inForce, configured = m.Settings() })
	switch {
	case configured && (bytes.Equal(last, now) || bytes.Equal(last, wanted.fingerprint())):
		return nil // the second, while an old log is applied again in which an older version is in force
	case configured && bytes.Equal(last, wanted.before(fsm.VersionClientShares-1).fingerprint()):
		// The settings are as this node offered them, and a newer version of the log came into force: only what that brings is new.
		if err := n.addShares(ctx, inForce, current.Settings.Limits); err != nil {
			return err
		}
	case configured && len(last) != len(now):
		same := Offer{Settings: inForce, KeepPolicy: current.KeepPolicy}
		if !bytes.Equal(same.fingerprint(), now) {
			n.world.Log.Warn("this node's settings differ from those in force in the cluster, which stay: a change on any node takes effect")
		}
	default:
		if err := n.proposeOffer(ctx, current.changed(configured, last, now, inForce)); err != nil {
			return err
		}
		n.world.Log.Info("settings are in force")
	}
	if err := n.world.Stores.Offered.Save(now); err != nil {
		return fmt.Errorf("remember the settings offered: %w", err)
	}
	return nil
}

// errSharesPending says that the leader has not yet proposed what a new version of the log adds to the settings.
var errSharesPending = errors.New("the leader has not proposed the shares of clients yet")

// addShares adds the shares of clients to the settings in force. Only a leader does, whose state is the newest: another node would put older
// settings into force with them.
func (n *Node) addShares(ctx context.Context, inForce fsm.Settings, wanted fsm.Limits) error {
	if inForce.Limits.WatchesPerClient != 0 || inForce.Limits.DedupPerClient != 0 {
		return nil // a leader has
	}
	if n.leadership.Load() == nil {
		return errSharesPending
	}
	inForce.Limits.WatchesPerClient, inForce.Limits.DedupPerClient = wanted.WatchesPerClient, wanted.DedupPerClient
	return n.proposeOffer(ctx, &Offer{Settings: inForce, KeepPolicy: true})
}

// changed returns the offer with only that which is not as it was: the other half stays in force.
func (o *Offer) changed(configured bool, last, now []byte, inForce fsm.Settings) *Offer {
	changed := *o
	const half = sha256.Size
	switch {
	case !configured || len(last) != len(now):
	case bytes.Equal(last[half:], now[half:]): // the policy is as it was
		changed.KeepPolicy = true
	case bytes.Equal(last[:half], now[:half]): // the settings are
		policy := changed.Settings.Policy
		changed.Settings = inForce
		changed.Settings.Policy = policy
	}
	return &changed
}

// proposeOffer puts settings into the log, here or by way of the leader.
func (n *Node) proposeOffer(ctx context.Context, offer *Offer) error {
	_, err := n.Execute(ctx, offer.command())
	if errors.Is(err, peer.ErrNotLeader) {
		_, err = n.leaderCall(ctx, peer.MethodOffer, offer.encode())
	}
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	return nil
}

// watchOffers offers this node's settings once it hears of a leader, and when they change.
func (n *Node) watchOffers(ctx context.Context) {
	const retry = 500 * time.Millisecond
	ticker := time.NewTicker(retry)
	defer ticker.Stop()
	version := uint32(0) // of the log, at the last offer
	for pending := true; ; {
		configured := false
		n.View(func(m *fsm.Machine) { _, configured = m.Settings() })
		if now := n.replica.Status().Version; now != version {
			pending, version = true, now
		}
		// The leader of a new cluster puts its settings into force before it serves; the others wait for that.
		if pending && configured {
			offering, cancel := context.WithTimeout(ctx, 10*retry)
			err := n.offer(offering)
			cancel()
			pending = err != nil
			if err != nil {
				n.world.Log.Debug("the settings could not be offered yet", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-n.offers.changed:
			pending = true
		case <-ticker.C:
		}
	}
}
