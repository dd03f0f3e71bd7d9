package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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

// fingerprint returns bytes that are the same for the same offer.
func (o *Offer) fingerprint() []byte {
	return fsm.AppendEntry(nil, &fsm.Entry{Commands: []fsm.Command{o.command()}})
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

// offer proposes this node's settings when they differ from those that it offered last, or when none were ever offered by
// anybody. What it offered is remembered, so that a leader change brings back nobody's older settings. A node without a
// memory that finds settings in force leaves them so: it is new, or has lost its disk.
func (n *Node) offer(ctx context.Context) error {
	n.offers.mu.Lock()
	current := n.offers.current
	n.offers.mu.Unlock()
	fingerprint := current.fingerprint()
	last, err := n.world.Stores.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the settings offered last: %w", err)
	}
	configured, same := false, false
	n.View(func(m *fsm.Machine) {
		inForce, ok := m.Settings()
		inForce = n.withPolicyOf(&current, inForce)
		configured, same = ok, bytes.Equal((&Offer{inForce, current.KeepPolicy}).fingerprint(), fingerprint)
	})
	switch {
	case configured && bytes.Equal(last, fingerprint):
		return nil
	case configured && last == nil && !same:
		n.world.Log.Warn("this node's settings differ from those in force in the cluster, which stay: a change on any node takes effect")
	case configured && same:
	default:
		if err := n.proposeOffer(ctx, &current); err != nil {
			return err
		}
		n.world.Log.Info("settings are in force")
	}
	if err := n.world.Stores.Offered.Save(fingerprint); err != nil {
		return fmt.Errorf("remember the settings offered: %w", err)
	}
	return nil
}

// withPolicyOf returns settings with the policy that an offer which keeps it stands for: any.
func (n *Node) withPolicyOf(offer *Offer, settings fsm.Settings) fsm.Settings {
	if offer.KeepPolicy {
		settings.Policy = offer.Settings.Policy
	}
	return settings
}

// proposeOffer puts settings into the log, here or by way of the leader.
func (n *Node) proposeOffer(ctx context.Context, offer *Offer) error {
	_, err := n.Execute(ctx, offer.command())
	if errors.Is(err, ErrNotLeader) {
		_, err = n.leaderCall(ctx, MethodOffer, offer.fingerprint())
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
	for pending := true; ; {
		configured := false
		n.View(func(m *fsm.Machine) { _, configured = m.Settings() })
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
