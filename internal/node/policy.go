package node

import (
	"bytes"
	"context"
	"os"
	"time"

	"holdfast/cluster/offer"
	"holdfast/internal/policy/policyfile"
	"holdfast/internal/settings"
)

// NewOffer returns what a node with these settings offers to the cluster.
func NewOffer(s *settings.Settings) (offer.Offer, error) {
	wanted := offer.Offer{Settings: s.Replicated(AvailableMemory()), KeepPolicy: s.PolicyFile == ""}
	if s.PolicyFile != "" && s.PolicyFile != settings.None {
		policy, err := policyfile.Read(s.PolicyFile)
		if err != nil {
			return offer.Offer{}, err
		}
		wanted.Settings.Policy = policy
	}
	return wanted, nil
}

// followPolicy reads the policy file once a second. If its content has changed, followPolicy offers the new policy to the cluster. A file that does not parse
// leaves the old policy in force.
func (n *Node) followPolicy(ctx context.Context) {
	const interval = time.Second
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last []byte // nil: the first read offers the file's policy again. If NewOffer read the same one, that changes nothing
	readable := true
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		content, err := os.ReadFile(n.config.PolicyFile)
		if (err == nil) != readable {
			if readable = err == nil; readable {
				n.config.Log.Info("the policy file is readable again", "file", n.config.PolicyFile)
			} else {
				n.config.Log.Warn("the policy file cannot be read: the old policy stays in force", "file", n.config.PolicyFile, "error", err)
			}
		}
		if err != nil || bytes.Equal(content, last) {
			continue
		}
		last = content
		policy, err := policyfile.Parse(content)
		if err != nil {
			n.config.Log.Error("the policy file does not parse: the old policy stays in force", "file", n.config.PolicyFile, "error", err)
			continue
		}
		wanted := n.config.Offer
		wanted.Settings.Policy, wanted.KeepPolicy = policy, false
		n.Cluster.SetOffer(wanted)
		n.config.Log.Info("the policy file was read", "file", n.config.PolicyFile)
	}
}
