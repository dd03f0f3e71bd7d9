package node

import (
	"bytes"
	"context"
	"os"
	"time"

	"holdfast/cluster"
	"holdfast/internal/policy/policyfile"
	"holdfast/internal/settings"
)

// NewOffer returns what a node with these settings offers to the cluster.
func NewOffer(s *settings.Settings) (cluster.Offer, error) {
	offer := cluster.Offer{Settings: s.Replicated(AvailableMemory()), KeepPolicy: s.PolicyFile == ""}
	if s.PolicyFile != "" && s.PolicyFile != settings.None {
		policy, err := policyfile.Read(s.PolicyFile)
		if err != nil {
			return cluster.Offer{}, err
		}
		offer.Settings.Policy = policy
	}
	return offer, nil
}

// followPolicy re-reads the policy file when its content changes. A file that does not parse leaves the old policy in force.
func (n *Node) followPolicy(ctx context.Context) {
	const interval = time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, _ := os.ReadFile(n.config.PolicyFile) // read once already; a change in between is seen at the next look
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		content, err := os.ReadFile(n.config.PolicyFile)
		if err != nil || bytes.Equal(content, last) {
			continue // a file that is just being replaced is looked at again
		}
		last = content
		policy, err := policyfile.Parse(content)
		if err != nil {
			n.config.Log.Error("the policy file does not parse: the old policy stays in force", "file", n.config.PolicyFile, "error", err)
			continue
		}
		offer := n.config.Offer
		offer.Settings.Policy, offer.KeepPolicy = policy, false
		n.Cluster.SetOffer(offer)
		n.config.Log.Info("the policy file has changed", "file", n.config.PolicyFile)
	}
}
