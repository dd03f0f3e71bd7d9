package cluster

import (
	"bytes"
	"context"
	"fmt"
	"sync"

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

// SetOffer changes what this node wants the settings to be. A leader puts it into the log at once; another node when it leads.
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
// anybody. What it offered is remembered, so that a leader change brings back nobody's older settings.
func (n *Node) offer(ctx context.Context) error {
	n.offers.mu.Lock()
	current := n.offers.current
	n.offers.mu.Unlock()
	fingerprint := current.fingerprint()
	last, err := n.world.Stores.Offered.Load()
	if err != nil {
		return fmt.Errorf("read the settings offered last: %w", err)
	}
	configured := false
	n.View(func(m *fsm.Machine) { _, configured = m.Settings() })
	if configured && bytes.Equal(last, fingerprint) {
		return nil
	}
	if _, err := n.Execute(ctx, current.command()); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	n.world.Log.Info("settings are in force")
	if err := n.world.Stores.Offered.Save(fingerprint); err != nil {
		return fmt.Errorf("remember the settings offered: %w", err)
	}
	return nil
}

// watchOffers proposes changed settings while this node leads.
func (n *Node) watchOffers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.offers.changed:
			if err := n.offer(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}
